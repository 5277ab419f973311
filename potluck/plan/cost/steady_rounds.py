"""How long a round takes where rounds overlap: as long as the busiest device or line, unless too little is under way.

Nothing waits for a round's end. What is left of waiting: a stage of depth K has only K micro-batches under way, each
until its gradient is back; and of two open rounds the older has to be committed before a third begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potluck.plan.cost.recurrence import Pipeline, StationWork
from potluck.plan.cost.stage_cost import Station
from potluck.plan.cost.tables import Array


def steady_s(lines: Sequence[tuple[Station, ...]], pipeline: Pipeline, alone_s: Array, open_rounds: int) -> Array:
    """Seconds of a round of each plan; `alone_s` is what one takes by itself, from its beginning to its commit."""
    count = pipeline.micro_batches
    busy = [[count * s.busy_s + s.reduce_s + s.update_s for s in line] for line in lines]
    found: Array = np.maximum(np.max(np.array(busy), axis=1), alone_s / open_rounds)
    for stage in range(len(pipeline.stages)):
        found = np.maximum(found, _line_s(pipeline, stage))
    trip = np.zeros(len(lines))  # of one micro-batch, until its gradient is back
    for stage in reversed(range(len(pipeline.stages))):
        trip = trip + np.array([line[stage].passage_s for line in lines])
        for way, pair in ((pipeline.out, (stage, stage + 1)), (pipeline.back, (stage, stage + 1))):
            if pair in way:
                trip = trip + (way[pair].occupancy_s + way[pair].latency_s).mean(axis=0)
        found = np.maximum(found, count * trip / pipeline.depths[stage])
    return found


def _line_s(pipeline: Pipeline, stage: int) -> Array:
    """Seconds for which the line of a stage, or of its busiest member, is taken in a round."""
    leaving = [wire.occupancy_s for (a, _), wire in pipeline.out.items() if a == stage]
    leaving += [wire.occupancy_s for (_, b), wire in pipeline.back.items() if b == stage]
    if not leaving:
        return np.zeros(len(pipeline.begin_s[stage]))
    return _busiest(pipeline.stages[stage], sum(leaving[1:], leaving[0]))


def _busiest(work: StationWork, occupancy: Array) -> Array:
    """The sum over micro-batches, of the member that has most of it."""
    if work.holder is None:
        whole: Array = occupancy.sum(axis=0)
        return whole
    members = range(int(work.holder.max()) + 1)
    most: Array = np.max([np.where(work.holder == m, occupancy, 0.0).sum(axis=0) for m in members], axis=0)
    return most

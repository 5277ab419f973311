"""How long a round takes when stages are stations with wires between them: 1F1B as a recurrence, for many plans.

A station has one clock, or in a group by turns one for each member: micro-batch j belongs to the member whose turn it
is. What a member sends leaves it one message after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.plan.edges import Pair
from potluck.plan.tables import Array
from potluck.types import Medium

Places = NDArray[np.intp]


@dataclass(frozen=True)
class Work:
    """What a stage does for each micro-batch (first axis), in each plan of a batch (second axis)."""

    forward_s: Array
    backward_s: Array
    holder: Places | None  # the member whose turn it is; None where every stage has one clock


@dataclass(frozen=True)
class Wire:
    """A message from one stage to another, for each micro-batch and plan."""

    occupancy_s: Array  # the sender's next message waits that long
    latency_s: Array  # beside that


@dataclass(frozen=True)
class Pipeline:
    """Plans with the same number of stages, the same depths and the same number of micro-batches."""

    stages: Sequence[Work]
    out: Mapping[Pair, Wire]  # (earlier, later) → activations
    back: Mapping[Pair, Wire]  # (earlier, later) → gradients, from the later to the earlier
    begin_s: Sequence[Array]  # when each stage can start
    depths: tuple[int, ...]
    micro_batches: int
    medium: Medium = "full"


def finish_s(pipeline: Pipeline) -> list[Array]:
    """When each stage has run its last backward.

    Stages are visited in an order in which everything a piece of work waits for has been worked out: at tick t a stage
    of depth K runs backward for micro-batch t − K (later stages first), then forward for micro-batch t. On half-duplex
    and shared media, messages get their turn in this order, which is nearly but not always that of time; the event
    simulation is exact there.
    """
    stages, micro_batches = len(pipeline.depths), pipeline.micro_batches
    walk = _Walk(pipeline)
    for tick in range(micro_batches + max(pipeline.depths)):
        for p in reversed(range(stages)):
            if 0 <= tick - pipeline.depths[p] < micro_batches:
                walk.backward(p, tick - pipeline.depths[p])
        for p in range(stages):
            if tick < micro_batches:
                walk.forward(p, tick)
    return walk.finished


class _Clocks:
    """The time at which each member of a stage, or its line, is free again, in each plan."""

    def __init__(self, begin: Array, members: int) -> None:
        self._free = np.tile(begin, (members, 1))
        self._plans = np.arange(len(begin))

    def occupy(self, holder: Places | None, ready: Array, seconds: Array) -> Array:
        """Takes the holder from when it is free and `ready`, for so long; returns when it began."""
        start: Array
        if holder is None:
            start = np.maximum(self._free[0], ready)
            self._free[0] = start + seconds
        else:
            start = np.maximum(self._free[holder, self._plans], ready)
            self._free[holder, self._plans] = start + seconds
        return start


class _Walk:
    """The state of the recurrence."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.p = pipeline
        self.zero = np.zeros_like(pipeline.begin_s[0])
        stages = len(pipeline.stages)
        counts = [1 if work.holder is None else int(work.holder.max()) + 1 for work in pipeline.stages]
        self.clocks = [_Clocks(begin, n) for begin, n in zip(pipeline.begin_s, counts, strict=True)]
        self.lines = [_Clocks(self.zero, n if pipeline.medium == "full" else 1) for n in counts]
        self.inputs: list[dict[int, Array]] = [{} for _ in range(stages)]
        self.gradients: list[dict[int, Array]] = [{} for _ in range(stages)]
        self.finished = [self.zero] * stages

    def forward(self, p: int, j: int) -> None:
        done = self._work(p, j, self.p.stages[p].forward_s[j], self.inputs[p].pop(j, self.zero))
        _arrive(self.gradients[p], j, done)  # the backward of a micro-batch follows its forward
        for (earlier, later), wire in self.p.out.items():
            if earlier == p:
                _arrive(self.inputs[later], j, self._send(p, later, j, wire, done))

    def backward(self, p: int, j: int) -> None:
        done = self._work(p, j, self.p.stages[p].backward_s[j], self.gradients[p].pop(j, self.zero))
        self.finished[p] = np.maximum(self.finished[p], done)
        for (earlier, later), wire in self.p.back.items():
            if later == p:
                _arrive(self.gradients[earlier], j, self._send(p, earlier, j, wire, done))

    def _work(self, p: int, j: int, seconds: Array, ready: Array) -> Array:
        holder = self.p.stages[p].holder
        return self.clocks[p].occupy(None if holder is None else holder[j], ready, seconds) + seconds

    def _send(self, source: int, target: int, j: int, wire: Wire, ready: Array) -> Array:
        """When a message that is ready has arrived."""
        occupancy = wire.occupancy_s[j]
        if self.p.medium == "full":
            holder = self.p.stages[source].holder
            start = self.lines[source].occupy(None if holder is None else holder[j], ready, occupancy)
        elif self.p.medium == "shared":
            start = self.lines[0].occupy(None, ready, occupancy)
        else:
            other = self.lines[target].occupy(None, ready, self.zero)
            start = self.lines[source].occupy(None, np.maximum(ready, other), occupancy)
            self.lines[target].occupy(None, start, occupancy)
        arrived: Array = start + occupancy + wire.latency_s[j]
        return arrived


def _arrive(arrivals: dict[int, Array], j: int, when: Array) -> None:
    arrivals[j] = when if j not in arrivals else np.maximum(arrivals[j], when)

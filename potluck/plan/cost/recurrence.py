"""How long a round takes when stages are stations with wires between them: a schedule as a recurrence, for many plans.

A station has one clock, or in a group by turns one for each member: micro-batch j belongs to the member whose turn it
is. What a member sends leaves it one message after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.plan.cost.edges import StagePair
from potluck.plan.cost.tables import Array
from potluck.plan.schedule.schedules import Schedule
from potluck.plan.schedule.visits import visits
from potluck.types import Medium

Places = NDArray[np.intp]


@dataclass(frozen=True)
class StationWork:
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

    stages: Sequence[StationWork]
    out: Mapping[StagePair, Wire]  # (earlier, later) → activations
    back: Mapping[StagePair, Wire]  # (earlier, later) → gradients, from the later to the earlier
    begin_s: Sequence[Array]  # when each stage can start
    depths: tuple[int, ...]
    micro_batches: int
    schedule: Schedule
    medium: Medium = "full"


def finish_s(pipeline: Pipeline) -> list[Array]:
    """When each stage has run its last backward.

    Work is visited in an order in which everything that a piece of it waits for has been worked out. On half-duplex
    and shared media, messages get their turn in this order, which is nearly but not always that of time; the event
    simulation is exact there.
    """
    plans = len(pipeline.begin_s[0])
    if plans > _FEW:
        return list(_walk(pipeline, _Clocks, np.maximum))
    # Plain numbers are ten times as fast as arrays of one.
    alone = [_walk(_only(pipeline, plan), _Clock, max) for plan in range(plans)]
    return [np.array([finished[p] for finished in alone]) for p in range(len(pipeline.depths))]


_FEW = 6


def _only(pipeline: Pipeline, plan: int) -> Any:
    """One plan of a batch, in plain numbers."""

    def numbers(values: Any) -> list[Any]:
        return list(np.asarray(values)[:, plan].tolist())

    def wires(given: Mapping[StagePair, Wire]) -> dict[StagePair, Any]:
        return {pair: Wire(numbers(w.occupancy_s), numbers(w.latency_s)) for pair, w in given.items()}  # type: ignore[arg-type]

    stages: list[Any] = []
    for work in pipeline.stages:
        holder = None if work.holder is None else numbers(work.holder)
        stages.append(StationWork(numbers(work.forward_s), numbers(work.backward_s), holder))  # type: ignore[arg-type]
    begin: list[Any] = [float(b[plan]) for b in pipeline.begin_s]
    return replace(pipeline, stages=stages, out=wires(pipeline.out), back=wires(pipeline.back), begin_s=begin)


def _walk(pipeline: Any, clocks: Any, maximum: Any) -> Any:
    walk = _Walk(pipeline, clocks, maximum)
    for p, work, j in visits(pipeline.schedule, pipeline.depths, pipeline.micro_batches):
        if work == "forward":
            walk.forward(p, j)
        else:
            walk.backward(p, j)
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

    def free(self) -> Array:
        """When the only one is free."""
        free: Array = self._free[0].copy()
        return free


class _Clock:
    """The same for one plan, in plain numbers."""

    def __init__(self, begin: float, members: int) -> None:
        self._free = [begin] * members

    def occupy(self, holder: int | None, ready: float, seconds: float) -> float:
        place = holder or 0
        start = max(self._free[place], ready)
        self._free[place] = start + seconds
        return start

    def free(self) -> float:
        return self._free[0]


class _Walk:
    """The state of the recurrence: over arrays, one entry for each plan, or over plain numbers."""

    def __init__(self, pipeline: Any, clocks: Any, maximum: Any) -> None:
        self.p, self.maximum = pipeline, maximum
        self.zero = pipeline.begin_s[0] * 0.0
        counts = [1 if w.holder is None else int(np.max(w.holder)) + 1 for w in pipeline.stages]
        self.clocks = [clocks(begin, n) for begin, n in zip(pipeline.begin_s, counts, strict=True)]
        self.lines = [clocks(self.zero, n if pipeline.medium == "full" else 1) for n in counts]
        self.inputs: list[dict[int, Any]] = [{} for _ in counts]
        self.gradients: list[dict[int, Any]] = [{} for _ in counts]
        self.finished = [self.zero] * len(counts)
        self.leaving = [
            [(b, self.inputs[b], w) for (a, b), w in pipeline.out.items() if a == p] for p in range(len(counts))
        ]
        self.returning = [
            [(a, self.gradients[a], w) for (a, b), w in pipeline.back.items() if b == p] for p in range(len(counts))
        ]

    def forward(self, p: int, j: int) -> None:
        done = self._work(p, j, self.p.stages[p].forward_s[j], self.inputs[p].pop(j, self.zero))
        self._arrive(self.gradients[p], j, done)  # the backward of a micro-batch follows its forward
        for target, arrivals, wire in self.leaving[p]:
            self._arrive(arrivals, j, self._send(p, target, j, wire, done))

    def backward(self, p: int, j: int) -> None:
        done = self._work(p, j, self.p.stages[p].backward_s[j], self.gradients[p].pop(j, self.zero))
        self.finished[p] = self.maximum(self.finished[p], done)
        for target, arrivals, wire in self.returning[p]:
            self._arrive(arrivals, j, self._send(p, target, j, wire, done))

    def _work(self, p: int, j: int, seconds: Any, ready: Any) -> Any:
        holder = self.p.stages[p].holder
        return self.clocks[p].occupy(None if holder is None else holder[j], ready, seconds) + seconds

    def _send(self, source: int, target: int, j: int, wire: Wire, ready: Any) -> Any:
        """When a message that is ready has arrived."""
        occupancy = wire.occupancy_s[j]
        if self.p.medium == "full":
            holder = self.p.stages[source].holder
            start = self.lines[source].occupy(None if holder is None else holder[j], ready, occupancy)
        elif self.p.medium == "shared":
            start = self.lines[0].occupy(None, ready, occupancy)
        else:
            both = self.maximum(ready, self.lines[target].free())
            start = self.lines[source].occupy(None, both, occupancy)
            self.lines[target].occupy(None, start, occupancy)
        return start + occupancy + wire.latency_s[j]

    def _arrive(self, arrivals: dict[int, Any], j: int, when: Any) -> None:
        arrivals[j] = self.maximum(arrivals[j], when) if j in arrivals else when

"""How long a round takes when stages are stations with wires between them: 1F1B as a recurrence, for many plans.

A station may begin its next piece of work after an *occupancy*, and hands on the result after a *latency*; for a single
device both are the same, for a group by turns several micro-batches are under way at once. What a stage sends leaves it
one message after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potluck.plan.edges import Pair
from potluck.plan.tables import Array
from potluck.types import Medium


@dataclass(frozen=True)
class Work:
    """A station's forward or backward of one micro-batch, for each plan of a batch."""

    occupancy_s: Array
    latency_s: Array


@dataclass(frozen=True)
class Wire:
    """A message from one stage to another, for each plan of a batch."""

    occupancy_s: Array
    latency_s: Array  # beside the occupancy


@dataclass(frozen=True)
class Pipeline:
    """Plans with the same number of stages, the same depths and the same number of micro-batches."""

    forward: Sequence[Work]  # by stage
    backward: Sequence[Work]
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


class _Walk:
    """The state of the recurrence."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.p = pipeline
        stages = len(pipeline.depths)
        zero = np.zeros_like(pipeline.begin_s[0])
        self.free = list(pipeline.begin_s)
        self.ports = [zero] * (1 if pipeline.medium == "shared" else stages)
        self.inputs: list[dict[int, Array]] = [{} for _ in range(stages)]
        self.gradients: list[dict[int, Array]] = [{} for _ in range(stages)]
        self.finished = [zero] * stages

    def forward(self, p: int, j: int) -> None:
        work = self.p.forward[p]
        start = self._start(p, self.inputs[p].pop(j, None))
        self.free[p] = start + work.occupancy_s
        done = start + work.latency_s
        self.gradients[p][j] = done if j not in self.gradients[p] else np.maximum(self.gradients[p][j], done)
        for (earlier, later), wire in self.p.out.items():
            if earlier == p:
                self._send(p, later, wire, done, self.inputs[later], j)

    def backward(self, p: int, j: int) -> None:
        work = self.p.backward[p]
        start = self._start(p, self.gradients[p].pop(j, None))
        self.free[p] = start + work.occupancy_s
        done = start + work.latency_s
        self.finished[p] = np.maximum(self.finished[p], done)
        for (earlier, later), wire in self.p.back.items():
            if later == p:
                self._send(p, earlier, wire, done, self.gradients[earlier], j)

    def _start(self, p: int, ready: Array | None) -> Array:
        return self.free[p] if ready is None else np.maximum(self.free[p], ready)

    def _send(self, source: int, target: int, wire: Wire, ready: Array, arrivals: dict[int, Array], j: int) -> None:
        used = {"full": (source,), "half": (source, target), "shared": (0,)}[self.p.medium]
        start = ready
        for port in used:
            start = np.maximum(start, self.ports[port])
        left = start + wire.occupancy_s
        for port in used:
            self.ports[port] = left
        arrived = left + wire.latency_s
        arrivals[j] = arrived if j not in arrivals else np.maximum(arrivals[j], arrived)

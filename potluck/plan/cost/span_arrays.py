"""`memory.stage_bytes` for many runs of blocks at once, for planners that look at all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potluck.plan.cost.memory import SpanBytes
from potluck.plan.cost.tables import Array, DeviceTables
from potluck.types import ModelFacts
from potluck.wire.link import DEFAULT_WINDOW_BYTES


class SpanArrays:
    """What runs of blocks weigh, whoever holds them."""

    def __init__(self, facts: ModelFacts, spans: Sequence[tuple[int, int]]) -> None:
        found = [SpanBytes.of(facts, span) for span in spans]
        self._starts, self._stops = (np.array(ends, dtype=np.intp) for ends in zip(*spans, strict=True))
        self._weights = np.array([float(s.weights) for s in found])
        self._trainable = np.array([float(s.trainable) for s in found])
        self._tied = np.array([float(s.tied) for s in found])
        self._buffers = np.array([float(s.buffers) for s in found])
        self._crossing = np.array([float(s.crossing) for s in found])
        self._slots = facts.optimizer_slots
        self._blocks = len(facts.blocks)
        self._takes: dict[str, Array] = {}
        self._known: dict[tuple[str, int], tuple[Array, Array]] = {}

    def total(
        self,
        device: DeviceTables,
        rows: int,
        in_flight: int,
        *,
        members: int = 1,
        waiting: int = 2,
        recompute: bool = False,
    ) -> Array:
        """Most bytes of every run on a device, as the total of `stage_bytes`."""
        kept, working = self._measured(device, rows)
        crossing = rows * self._crossing
        gradients = self._trainable + (
            np.floor(self._trainable * (members - 1) / members) if members > 1 else self._tied
        )
        activations = crossing * in_flight + kept if recompute else kept * in_flight
        optimizer = self._slots * self._trainable
        copied = np.minimum(self._weights + optimizer, DEFAULT_WINDOW_BYTES)
        sending = np.maximum(0.0, copied - gradients - activations - working)
        state = self._weights + gradients + optimizer + 2 * self._buffers
        needed = state + activations + working + waiting * crossing + sending
        found: Array = needed * self._resident(device) + device.profile.code_bytes
        return found

    def _resident(self, device: DeviceTables) -> Array:
        known = self._takes.get(device.name)
        if known is None:
            spans = zip(self._starts.tolist(), self._stops.tolist(), strict=True)
            known = self._takes[device.name] = np.array([device.resident(span) for span in spans])
        return known

    def _measured(self, device: DeviceTables, rows: int) -> tuple[Array, Array]:
        """Bytes kept for a micro-batch, and beside that at the worst moment."""
        known = self._known.get((device.name, rows))
        if known is None:
            sums = device.kept(rows)
            known = (sums[self._stops] - sums[self._starts], self._working(device, rows))
            self._known[device.name, rows] = known
        return known

    def _working(self, device: DeviceTables, rows: int) -> Array:
        each = np.array([float(device.working_bytes((b, b + 1), rows)) for b in range(self._blocks)])
        most = np.zeros((self._blocks, self._blocks + 1))
        for start in range(self._blocks):
            most[start, start + 1 :] = np.maximum.accumulate(each[start:])
        found: Array = most[self._starts, self._stops]
        return found

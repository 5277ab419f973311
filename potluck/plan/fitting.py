"""Nothing fits: how much is missing where in the best attempt, and what would make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from potluck.plan.span_arrays import SpanArrays
from potluck.plan.tables import Array, DeviceTables, Tables
from potluck.types import DeviceProfile, Member, ModelFacts, Plan, Profile, Stage
from potluck.units import size_text

_MORE_DEVICES = 8
_SHOWN = 4  # devices that a message names


@dataclass(frozen=True)
class Shortfall:
    """The plan that is nearest to fitting, and what it lacks."""

    plan: Plan
    missing: tuple[tuple[str, int], ...]  # device, bytes; only those that lack some
    ways: tuple[str, ...]  # what would make it fit, in words

    def words(self) -> str:
        """All of it on one line."""
        lacks = _some([f"{size_text(size)} on {name}" for name, size in self.missing])
        return f"nothing fits the devices' memory: the best attempt lacks {lacks}; {', or '.join(self.ways)}"


def shortfall(facts: ModelFacts, profile: Profile, sizes: Sequence[tuple[int, int]]) -> Shortfall | None:
    """What is missing for any of these micro-batch sizes and counts, or None if a pipeline of single devices fits."""
    weights = _Weights(facts)
    best = min((_Attempt(weights, profile.devices, rows, count) for rows, count in sizes), key=lambda a: a.lacking)
    if not best.lacking:
        return None
    return Shortfall(best.plan(), best.missing(), tuple(_ways(weights, profile, best)))


def fitting_plan(facts: ModelFacts, profile: Profile, sizes: Sequence[tuple[int, int]]) -> Plan | None:
    """A pipeline of single devices that fits, if there is one for an order of the devices by memory."""
    weights = _Weights(facts)
    for rows, count in sizes:
        attempt = _Attempt(weights, profile.devices, rows, count)
        if not attempt.lacking:
            return attempt.plan()
    return None


def _ways(weights: _Weights, profile: Profile, best: _Attempt) -> list[str]:
    ways: list[str] = []
    rows = best.rows
    while rows > 1 and not ways:
        rows //= 2
        if not _Attempt(weights, profile.devices, rows, best.micro_batches * best.rows // rows).lacking:
            ways.append(f"set micro_batch_size to {rows}")
    largest = max(profile.devices, key=lambda d: d.device.memory_bytes)
    for more in range(1, min(_MORE_DEVICES, weights.count - len(profile.devices)) + 1):
        extra = [_copy(largest, f"{i}+{largest.device.name}") for i in range(more)]
        if not _Attempt(weights, (*profile.devices, *extra), best.rows, best.micro_batches).lacking:
            devices = "one more device" if more == 1 else f"{more} more devices"
            ways.append(f"add {devices} with {size_text(largest.device.memory_bytes)}")
            break
    more_bytes = [(name, profile.device(name).device.memory_bytes + size) for name, size in best.missing()]
    ways.append("give " + _some([f"{name} {size_text(size)}" for name, size in more_bytes]))
    return ways


def _some(items: Sequence[str]) -> str:
    shown = [*items[:_SHOWN], f"{len(items) - _SHOWN} more"] if len(items) > _SHOWN else list(items)
    return ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]


def _copy(device: DeviceProfile, name: str) -> DeviceProfile:
    return replace(device, device=replace(device.device, name=name[:64]))


class _Weights:
    """What runs of blocks need: [start, stop]."""

    def __init__(self, facts: ModelFacts) -> None:
        self.count = len(facts.blocks)
        self._places = np.triu_indices(self.count + 1, 1)
        self._spans = SpanArrays(facts, [(int(i), int(j)) for i, j in zip(*self._places, strict=True)])

    def need(self, device: DeviceTables, rows: int, in_flight: int) -> tuple[Array, Array]:
        """Most bytes of every run as a stage by itself: keeping what backward needs, and recomputing it."""
        found = np.zeros((2, self.count + 1, self.count + 1))
        for again in (False, True):
            found[int(again)][self._places] = self._spans.total(device, rows, in_flight, recompute=again)
        return found[0], found[1]


class _Attempt:
    """A pipeline of single devices, largest memory first, cut so that it is nearest to fitting."""

    def __init__(self, weights: _Weights, devices: Sequence[DeviceProfile], rows: int, micro_batches: int) -> None:
        self.rows, self.micro_batches = rows, micro_batches
        ordered = sorted(devices, key=lambda d: -(d.device.memory_bytes or float("inf")))[: weights.count]
        self._tables = Tables(Profile(program="", devices=tuple(ordered)))
        self.names = [d.device.name for d in ordered]
        # For blocks [0, j) on the devices so far: missing bytes, squared. A little on many is nearer than all on one.
        best = np.full(weights.count + 1, np.inf)
        best[0] = 0.0
        self._needs, starts = [], []
        for place, name in enumerate(self.names):
            device = self._tables.devices[name]
            needs = weights.need(device, rows, min(len(ordered) - place, micro_batches))
            over = np.maximum(0.0, np.minimum(*needs) - (device.memory_bytes or np.inf)) ** 2
            over[np.tril_indices(weights.count + 1, -1)] = np.inf
            np.fill_diagonal(over, 0.0)  # a device may stay without a stage
            tried = best[:, None] + over
            starts.append(np.argmin(tried, axis=0))
            best = tried.min(axis=0)
            self._needs.append(needs)
        self._cuts = _walk([[int(i) for i in start] for start in starts], weights.count)
        self.lacking = float(best[-1])

    def plan(self) -> Plan:
        """The attempt as a plan."""
        stages = tuple(
            Stage(
                blocks=blocks,
                group=(Member(device=self.names[place], share=self.micro_batches),),
                recompute=bool(self._needs[place][1][blocks] < self._needs[place][0][blocks]),
            )
            for place, blocks in enumerate(self._cuts)
            if blocks[0] < blocks[1]
        )
        return Plan(micro_batch_size=self.rows, micro_batches=self.micro_batches, stages=stages)

    def missing(self) -> tuple[tuple[str, int], ...]:
        """Devices that lack memory, and how much."""
        found = []
        for place, blocks in enumerate(self._cuts):
            limit = self._tables.devices[self.names[place]].memory_bytes
            size = int(min(need[blocks] for need in self._needs[place])) - limit
            if blocks[0] < blocks[1] and limit and size > 0:
                found.append((self.names[place], size))
        return tuple(found)


def _walk(starts: list[list[int]], stop: int) -> list[tuple[int, int]]:
    cuts = []
    for start in reversed(starts):
        cuts.append((start[stop], stop))
        stop = start[stop]
    return cuts[::-1]

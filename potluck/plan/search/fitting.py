"""Nothing fits: how much is missing where in the best attempt, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from potluck.plan.cost.span_arrays import SpanArrays
from potluck.plan.cost.tables import Array, DeviceTables, Tables
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.schedules import Schedule
from potluck.types import DEFAULT_SCHEDULE, DeviceProfile, Member, ModelFacts, Plan, Profile, Stage
from potluck.units import size_text

_MORE_DEVICES = 8
_SHOWN = 4  # devices that a message names
_EXACT_DEVICES = 16  # up to here an attempt counts the stages that it really has
_ALL_ORDERS = 4  # up to here every order of the devices is attempted


@dataclass(frozen=True)
class Shortfall:
    """The plan that is nearest to fitting, and what it lacks."""

    plan: Plan
    missing: tuple[tuple[str, int], ...]  # device, bytes; only those that lack some
    ways: tuple[str, ...]  # what would make it fit, in words

    def words(self) -> str:
        lacks = _some([f"{size_text(size)} on {name}" for name, size in self.missing])
        return f"nothing fits the devices' memory: the best attempt lacks {lacks}; {', or '.join(self.ways)}"


def shortfall(
    facts: ModelFacts, profile: Profile, sizes: Sequence[tuple[int, int]], schedule: str = DEFAULT_SCHEDULE
) -> Shortfall | None:
    """What is missing for any of these micro-batch sizes and counts, or None if a pipeline of single devices fits."""
    weights = _Weights(facts, schedule_named(schedule))
    best = min((_attempt(weights, profile.devices, rows, count) for rows, count in sizes), key=lambda a: a.lacking)
    if not best.lacking:
        return None
    return Shortfall(best.plan(), best.missing(), tuple(_ways(weights, profile, best)))


def fitting_plan(
    facts: ModelFacts, profile: Profile, sizes: Sequence[tuple[int, int]], schedule: str = DEFAULT_SCHEDULE
) -> Plan | None:
    """A pipeline of single devices that fits, if there is one for an order that is attempted."""
    weights = _Weights(facts, schedule_named(schedule))
    for rows, count in sizes:
        attempt = _attempt(weights, profile.devices, rows, count)
        if not attempt.lacking:
            return attempt.plan()
    return None


def _attempt(weights: _Weights, devices: Sequence[DeviceProfile], rows: int, micro_batches: int) -> _Attempt:
    """The nearest to fitting of several orders of the devices."""
    best = None
    for order in _orders(devices, weights.count):
        attempt = _Attempt(weights, order, rows, micro_batches)
        if best is None or attempt.lacking < best.lacking:
            best = attempt
        if not best.lacking:
            break
    if best is None:
        raise ValueError("no devices")
    return best


def _orders(devices: Sequence[DeviceProfile], blocks: int) -> Iterator[Sequence[DeviceProfile]]:
    """By memory, the largest first, which suits most models; then others."""
    largest = sorted(devices, key=lambda d: -(d.device.memory_bytes or float("inf")))
    yield largest[:blocks]
    if len(devices) <= _ALL_ORDERS:
        yield from permutations(devices)
        return
    yield largest[:_EXACT_DEVICES]
    yield largest[:_EXACT_DEVICES][::-1]
    yield largest[:blocks][::-1]
    yield devices[:blocks]
    yield devices[:blocks][::-1]


def _ways(weights: _Weights, profile: Profile, best: _Attempt) -> list[str]:
    ways: list[str] = []
    rows = best.rows
    while rows > 1 and not ways:
        rows //= 2
        if not _attempt(weights, profile.devices, rows, best.micro_batches * best.rows // rows).lacking:
            ways.append(f"set micro_batch_size to {rows}")
    largest = max(profile.devices, key=lambda d: d.device.memory_bytes)
    for more in range(1, min(_MORE_DEVICES, weights.count - len(profile.devices)) + 1):
        extra = [_copy(largest, f"{i}+{largest.device.name}") for i in range(more)]
        if not _attempt(weights, (*profile.devices, *extra), best.rows, best.micro_batches).lacking:
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

    def __init__(self, facts: ModelFacts, schedule: Schedule) -> None:
        self.count, self.schedule = len(facts.blocks), schedule
        self._places = np.triu_indices(self.count + 1, 1)
        self._spans = SpanArrays(facts, [(int(i), int(j)) for i, j in zip(*self._places, strict=True)])

    def need(self, device: DeviceTables, rows: int, in_flight: int) -> tuple[Array, Array]:
        """Most bytes of every run as a stage by itself: keeping what backward needs, and recomputing it."""
        found = np.zeros((2, self.count + 1, self.count + 1))
        for again in (False, True):
            found[int(again)][self._places] = self._spans.total(device, rows, in_flight, recompute=again)
        return found[0], found[1]


class _Attempt:
    """A pipeline of single devices in a given order, cut so that it is nearest to fitting.

    Any device may stay without a stage. What a stage keeps depends on the stages behind it, so the programme goes from
    the last device to the first and knows how many there are; with many devices it takes all of them to be used.
    """

    def __init__(self, weights: _Weights, devices: Sequence[DeviceProfile], rows: int, micro_batches: int) -> None:
        self.rows, self.micro_batches = rows, micro_batches
        self._tables = Tables(Profile(program="", devices=tuple(devices)))
        self.names = [d.device.name for d in devices]
        self._weights = weights
        self._known: dict[tuple[str, int], tuple[Array, Array]] = {}
        exact = len(devices) <= _EXACT_DEVICES
        blocks, most = weights.count, min(len(devices), weights.count) if exact else 0
        # [stages behind, first block]: missing bytes, squared. A little on many is nearer than all on one.
        best = np.full((most + 1, blocks + 1), np.inf)
        best[0, blocks] = 0.0
        self._choices: list[NDArray[np.intp]] = []  # for each device from the last: where its stage ends
        for place in reversed(range(len(devices))):
            choice = np.tile(np.arange(blocks + 1), (most + 1, 1))  # no stage
            after = best.copy()
            for behind in range(most) if exact else (0,):
                flying = self._flying(behind + 1 if exact else len(devices) - place)
                tried = self._over(self.names[place], flying) + best[behind][None, :]
                ends, least = tried.argmin(axis=1), tried.min(axis=1)
                to = behind + 1 if exact else 0
                better = least < after[to]
                after[to], choice[to] = np.where(better, least, after[to]), np.where(better, ends, choice[to])
            best = after
            self._choices.append(choice)
        self._used = int(best[:, 0].argmin())
        self.lacking = float(best[self._used, 0])
        self._stages = self._follow(exact)

    def _flying(self, to_the_end: int) -> int:
        """Micro-batches in flight in a stage that has so many to the end."""
        return self._weights.schedule.in_flight(to_the_end, self.micro_batches)

    def _needs(self, name: str, flying: int) -> tuple[Array, Array]:
        known = self._known.get((name, flying))
        if known is None:
            known = self._known[name, flying] = self._weights.need(self._tables.devices[name], self.rows, flying)
        return known

    def _over(self, name: str, flying: int) -> Array:
        """Missing bytes of every run of blocks, squared; infinite for none."""
        limit = self._tables.devices[name].memory_bytes or np.inf
        over: Array = np.maximum(0.0, np.minimum(*self._needs(name, flying)) - limit) ** 2
        over[np.tril_indices(self._weights.count + 1)] = np.inf
        return over

    def _follow(self, exact: bool) -> list[tuple[str, tuple[int, int], int]]:
        """Device, blocks and micro-batches in flight of each stage."""
        found, start, left = [], 0, self._used
        for place, choice in enumerate(reversed(self._choices)):
            stop = int(choice[left, start])
            if stop > start:
                flying = self._flying(left if exact else len(self.names) - place)
                found.append((self.names[place], (start, stop), flying))
                start, left = stop, left - 1 if exact else 0
        return found

    def plan(self) -> Plan:
        stages = tuple(
            Stage(
                blocks=blocks,
                group=(Member(device=name, share=self.micro_batches),),
                recompute=bool(self._needs(name, flying)[1][blocks] < self._needs(name, flying)[0][blocks]),
            )
            for name, blocks, flying in self._stages
        )
        schedule = self._weights.schedule.name
        return Plan(micro_batch_size=self.rows, micro_batches=self.micro_batches, stages=stages, schedule=schedule)

    def missing(self) -> tuple[tuple[str, int], ...]:
        """Devices that lack memory, and how much."""
        found = []
        for name, blocks, flying in self._stages:
            limit = self._tables.devices[name].memory_bytes
            size = int(min(need[blocks] for need in self._needs(name, flying))) - limit
            if limit and size > 0:
                found.append((name, size))
        return tuple(found)

"""Asteroid's planner as published: devices sorted by memory, Algorithm 1 for shares, Algorithm 2 for cuts and groups.

Depths are K = 2 (stages to the end) − 1, memory is honoured, and the latency of a round is that of the dominant step
(Eq. 4 to 6, and 11), in which a transfer is a step of its own and both directions of a link take turns. Where it
differs from the paper: a stage that may not be cut by samples is shared by turns; every member of a group by samples
has at least two rows, and if that leaves no work for all devices, those with the least memory stay idle; in large
fleets long models are cut only at some of their blocks, and into few stages if that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.errors import PlanError
from potluck.plan.cost.tables import Array
from potluck.plan.groups import stage_by
from potluck.plan.published.asteroid_costs import Ground, Shares, Table, allocate
from potluck.plan.published.uniform import Uniform
from potluck.types import ModelFacts, Plan, Profile, Sharing, Stage

MOST_STAGES = 12
_WORK = 60_000  # spans × devices that Algorithm 1 is run on: beyond, fewer cuts are considered


def asteroid(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """The plan of Algorithm 2; PlanError if none fits the memory."""
    borders = coarse_borders(facts, profile, micro_batch_size, micro_batches)
    search = AsteroidSearch(Ground(facts, profile, micro_batch_size, micro_batches, borders))
    stages, _ = search.best()
    return Plan(micro_batch_size=micro_batch_size, micro_batches=micro_batches, stages=stages)


def coarse_borders(facts: ModelFacts, profile: Profile, rows: int, micro_batches: int) -> list[int]:
    """Block borders to cut at: all of them, or in a long model and a large fleet some, of about equal load between."""
    count, devices = len(facts.blocks), len(profile.devices)
    most = max(8, int((2 * _WORK / devices) ** 0.5))
    if count <= most:
        return list(range(count + 1))
    seen = Uniform(facts, profile, rows, micro_batches)
    step = seen.forward(rows) + seen.backward(rows)
    load = step / step[-1] + seen.weights / max(seen.weights[-1], 1.0)
    wanted = np.linspace(0.0, load[-1], most + 1)
    return sorted({0, count, *(int(np.argmin(np.abs(load - w))) for w in wanted)})


def latency_s(steps: list[tuple[float, float, float]], micro_batches: int) -> float:
    """Seconds of a round of (forward, backward, all-reduce) steps: Eq. 4 to 6 with the dominant step of Eq. 11."""
    both = [f + b for f, b, _ in steps]
    dominant = max(range(len(steps)), key=lambda c: micro_batches * both[c] + sum(both[:c]))
    worst = 0.0
    for s, (_, _, reduce) in enumerate(steps):
        waits = sum(f for f, _, _ in steps[:s])
        runs = micro_batches * both[dominant]
        runs += sum(both[s:dominant]) if s < dominant else -sum(both[dominant:s])
        worst = max(worst, waits + runs + reduce)
    return worst


@dataclass
class _Heads:
    """Groups of one size as the first stage of something: [first device, span]."""

    forward: Array
    backward: Array
    reduce: Array
    shares: Shares  # [first device, span, member]


@dataclass
class _Tails:
    """Best latency of the blocks from each border on, on the devices from each on: [border, device].

    The latency is the sum of two figures, and both follow from those of a shorter tail: `dominant`, the longest of M
    times a step and all steps before it, and `ending`, the longest of a step's all-reduce less the backwards before it.
    """

    dominant: Array
    ending: Array
    size: NDArray[np.int64]  # devices of the first stage
    stop: NDArray[np.int64]  # border where it ends

    @classmethod
    def none(cls, borders: int, devices: int) -> _Tails:
        shape = (borders, devices + 1)
        return cls(np.full(shape, np.inf), np.zeros(shape), np.zeros(shape, int), np.zeros(shape, int))


class AsteroidSearch:
    """Algorithm 2."""

    def __init__(self, ground: Ground) -> None:
        self.g = ground
        count = len(ground.devices)
        samples, turns = max(1, ground.rows // 2), ground.micro_batches if ground.coupled.any() else 1
        self.largest = min(count, max(samples, turns))
        self.limited = bool(np.isfinite(ground.limits).any())
        self._heads: dict[tuple[int, int], _Heads] = {}
        self._between: dict[int, Array] = {}

    def best(self) -> tuple[tuple[Stage, ...], float]:
        """The stages of the best plan and its latency: on all devices, or where that cannot be on the first of them."""
        for everybody, most in ((True, MOST_STAGES), (False, MOST_STAGES), (False, len(self.g.devices))):
            layers = [self._last_stages(everybody)]
            for p in range(2, min(len(self.g.borders) - 1, len(self.g.devices), most) + 1):
                layers.append(self._longer(layers[-1], p))
            seconds = [t.dominant[0, 0] + t.ending[0, 0] for t in layers]
            if np.isfinite(min(seconds)):
                return self._walk(layers, int(np.argmin(seconds))), float(min(seconds))
        raise PlanError(
            "plan: asteroid: nothing fits the devices' memory; give them more, or use smaller micro-batches"
        )

    def heads(self, size: int, depth: int) -> _Heads:
        """All groups of so many neighbouring devices, for all spans; infinite where they cannot."""
        key = (size, depth if self.limited else 0)
        if key not in self._heads:
            self._heads[key] = self._make_heads(size, depth)
        return self._heads[key]

    def _make_heads(self, size: int, depth: int) -> _Heads:
        ground = self.g
        starts = len(ground.devices) - size + 1
        shares = np.zeros((starts, len(ground.spans), size), dtype=np.int64)
        forward, backward = np.full((2, starts, len(ground.spans)), np.inf)
        turns = ground.coupled & (size > 1)
        for table, mask in ((ground.by_samples, ~turns), (ground.by_turns, turns)):
            if mask.any():
                given, f, b = self._shared(table, mask, size, depth)
                shares[:, mask], forward[:, mask], backward[:, mask] = given, f, b
        slowest = np.array([ground.slowest_within(a, a + size) for a in range(starts)])
        reduce = 2 * (size - 1) / size * ground.weights[None, :] / slowest[:, None]
        cannot = (shares.sum(axis=-1) == 0) | (ground.exclusive[None, :] & (size > 1))
        forward[cannot] = np.inf
        return _Heads(forward, backward, reduce, shares)

    def _shared(self, table: Table, mask: NDArray[np.bool_], size: int, depth: int) -> tuple[Shares, Array, Array]:
        groups = np.arange(len(self.g.devices) - size + 1)[:, None] + np.arange(size)[None, :]
        least = table.least if size > 1 else 1
        caps = table.caps(depth, shared=size > 1)[:, mask]
        both = (table.forward + table.backward)[:, :, mask].transpose(0, 2, 1)  # [device, span, share]
        shares = allocate(both[groups].transpose(0, 2, 1, 3), caps[groups].transpose(0, 2, 1), table.total, least)
        member = groups[:, None, :]
        span = np.flatnonzero(mask)[None, :, None]
        return shares, table.forward[member, shares, span].max(-1), table.backward[member, shares, span].max(-1)

    def _last_stages(self, everybody: bool) -> _Tails:
        """One group for all the blocks from each border on."""
        ground, count = self.g, len(self.g.devices)
        tails = _Tails.none(len(ground.borders), count)
        ends = ground.last == len(ground.borders) - 1
        for size in range(1, self.largest + 1):
            heads = self.heads(size, 1)
            dominant = ground.micro_batches * (heads.forward + heads.backward)[:, ends]
            starts = [count - size] if everybody else range(count - size + 1)
            for a in starts:
                where = (ground.first[ends], a)
                better = dominant[a] + heads.reduce[a, ends] < tails.dominant[where] + tails.ending[where]
                place = (ground.first[ends][better], a)
                tails.dominant[place], tails.ending[place] = dominant[a][better], heads.reduce[a, ends][better]
                tails.size[place], tails.stop[place] = size, len(ground.borders) - 1
        return tails

    def _longer(self, tails: _Tails, p: int) -> _Tails:
        """The tails with one more stage in front, which is the p-th from the end."""
        ground, count = self.g, len(self.g.devices)
        found = _Tails.none(len(ground.borders), count)
        for size in range(1, min(self.largest, count - 1) + 1):
            heads = self.heads(size, 2 * p - 1)
            with np.errstate(invalid="ignore"):  # what cannot be is infinite
                dominant, ending = self._prepend(tails, heads, size)
            self._keep(found, dominant, ending, size)
        return found

    def _prepend(self, tails: _Tails, heads: _Heads, size: int) -> tuple[Array, Array]:
        """Both figures of every span on so many devices in front of the tail behind it: [first device, span]."""
        ground, m = self.g, self.g.micro_batches
        starts = np.arange(len(ground.devices) - size)
        behind = (ground.last[None, :], starts[:, None] + size)
        rate = self._slowest_between(size)[starts[:, None], tails.size[behind]]
        out, back = (ground.rows * ground.cuts[ground.last, way][None, :] / rate for way in (0, 1))
        forward, backward, reduce = heads.forward[starts], heads.backward[starts], heads.reduce[starts]
        head, link = forward + backward, out + back
        longest = np.maximum(m * head, m * link + head)
        dominant = np.maximum(longest, tails.dominant[behind] + head + link)
        ending = np.maximum(np.maximum(reduce, -backward), tails.ending[behind] - backward - back)
        return dominant, ending

    def _slowest_between(self, size: int) -> Array:
        """Least bandwidth from a group of that size to one behind it: [first device, size of the other]."""
        if size not in self._between:
            ground, count = self.g, len(self.g.devices)
            found = np.full((count - size, self.largest + 1), np.inf)
            for a in range(count - size):
                behind = ground.rates[a : a + size, a + size : a + size + self.largest].min(axis=0)
                least = np.minimum.accumulate(behind)
                found[a, 1 : len(least) + 1] = least
            self._between[size] = found
        return self._between[size]

    def _keep(self, found: _Tails, dominant: Array, ending: Array, size: int) -> None:
        ground, starts = self.g, np.arange(len(dominant))
        seconds = dominant + ending
        begins = np.searchsorted(ground.first, np.arange(len(ground.borders) - 1))
        for i, (start, stop) in enumerate(zip(begins, [*begins[1:], seconds.shape[1]], strict=True)):
            best = start + np.argmin(seconds[:, start:stop], axis=1)
            better = seconds[starts, best] < found.dominant[i, starts] + found.ending[i, starts]
            a, span = starts[better], best[better]
            found.dominant[i, a], found.ending[i, a] = dominant[a, span], ending[a, span]
            found.size[i, a], found.stop[i, a] = size, ground.last[span]

    def _walk(self, layers: list[_Tails], layer: int) -> tuple[Stage, ...]:
        ground, stages, i, a = self.g, [], 0, 0
        spans = {(int(f), int(s)): n for n, (f, s) in enumerate(zip(ground.first, ground.last, strict=True))}
        for p in range(layer, -1, -1):
            size, stop = int(layers[p].size[i, a]), int(layers[p].stop[i, a])
            span, depth = spans[i, stop], 2 * p + 1
            shares = self.heads(size, depth).shares[a, span]
            kind: Sharing = "turns" if ground.coupled[span] else "samples"
            names = [d.name for d in ground.devices[a : a + size]]
            stages.append(
                stage_by(ground.spans[span], names, [int(s) for s in shares], kind, depth, ground.micro_batches)
            )
            i, a = stop, a + size
        return tuple(stages)

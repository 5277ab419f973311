"""A round that no plan can beat, so that the user sees how far from perfect a plan can possibly be."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np

from potluck.plan.cost import CostModel
from potluck.plan.sequences import Groups, all_sequences
from potluck.plan.tables import Array, DeviceTables

THOROUGH_DEVICES = 5  # up to here every sequence of groups is looked at
_STEP = 0.995  # the bound is found to within this factor


def lower_bound_s(cost: CostModel, deadline: float = float("inf")) -> float:
    """Seconds that every plan of this cost model needs at least, by the cost model and by the event simulation.

    With few devices: for every sequence of groups the least time in which, for some cuts, each stage can do its work
    after the first micro-batch has come to it and before the last one's gradients have gone back. With many, or when
    time is up: all devices busy all the time with what they do best.
    """
    bound = _Bound(cost)
    devices = tuple(cost.tables.devices)
    if len(devices) > THOROUGH_DEVICES:
        return bound.everybody_busy_s()
    least = float("inf")
    for groups in all_sequences(devices):
        if time.monotonic() > deadline:
            return bound.everybody_busy_s()
        least = bound.improve(groups, least)
    return max(least * _STEP, bound.everybody_busy_s())


@dataclass(frozen=True)
class _Figures:
    """A group on every run of blocks [i, j), at its best."""

    busy: Array  # seconds of a micro-batch, of the whole group
    passage: Array  # of one micro-batch, forward and backward
    forward: Array
    update: Array
    reduce: Array


class _Bound:
    """Optimistic figures of groups: work divides without loss, lines are as fast as the fastest."""

    def __init__(self, cost: CostModel) -> None:
        self.cost, self.blocks = cost, len(cost.facts.blocks)
        self.coupled = any(b.coupled for b in cost.facts.blocks)
        devices = cost.tables.devices.items()
        self.step = {d: _differences(_least(t, cost.rows, forward=False)) for d, t in devices}
        self.forward = {d: _differences(_least(t, cost.rows, forward=True)) for d, t in devices}
        self.alone = {d: _differences(t.forward(cost.rows) + t.backward(cost.rows)) for d, t in devices}
        self.alone_forward = {d: _differences(t.forward(cost.rows)) for d, t in devices}
        self.update = {d: _differences(t.update) for d, t in devices}
        self.out = np.array([float(c[0]) for c in cost.stations.cuts]) * cost.rows
        self.back = np.array([float(c[1]) for c in cost.stations.cuts]) * cost.rows
        size = np.concatenate([[0.0], np.cumsum([b.trainable_bytes for b in cost.facts.blocks])])
        self.size = _differences(size)
        self.possible = np.tri(self.blocks + 1, k=-1, dtype=bool).T

    def everybody_busy_s(self) -> float:
        """For any weights of the devices that add up to one, the weighted mean of their busy seconds is at most the
        slowest one's; so a round takes at least the sum over blocks of the cheapest weighted time.

        The weights are moved towards the devices that are busiest.
        """
        work = self.cost.micro_batches * np.array([step.diagonal(1) for step in self.step.values()])  # device × block
        weights = 1.0 / np.maximum(work.sum(axis=1), 1e-12)
        best = 0.0
        for turn in range(200):
            weights = weights / weights.sum()
            weighted = weights[:, None] * work
            best = max(best, float(weighted.min(axis=0).sum()))
            chosen = weighted.argmin(axis=0)
            load = np.array([work[d, chosen == d].sum() for d in range(len(work))])
            weights = weights * (1.0 + 0.2 / (1 + turn) * (load / max(float(load.mean()), 1e-12) - 1.0)).clip(0.5, 2.0)
        return best + self.cost.profile.commit_s

    def improve(self, groups: Groups, least: float) -> float:
        """The smaller of `least` and what this sequence needs at least."""
        spans = [self._group(g) for g in groups]
        wires = [self._wires(a, b) for a, b in itertools.pairwise(groups)]
        if np.isinf(least):
            least = 2.0 * sum(float(self.cost.micro_batches * step[0, -1]) for step in self.step.values()) + 1e-6
        while self._possible(spans, wires, least * _STEP):
            least *= _STEP
        return least

    def _possible(self, spans: list[_Figures], wires: list[tuple[Array, Array, Array]], seconds: float) -> bool:
        """Whether some cuts let every stage finish in time. The less a stage has waited, the better for all after it.

        `before` is what passes until a stage can begin, `around` that and what is left to do when it has ended; summing
        gradients happens at the same time as the latter.
        """
        m, commit = self.cost.micro_batches, self.cost.profile.commit_s
        before = np.full(self.blocks + 1, np.inf)
        before[0] = 0.0
        around = before
        for p, group in enumerate(spans):
            work = m * group.busy + group.update + commit
            needs = np.maximum(around[:, None] + work, before[:, None] + work + group.reduce)
            ahead, after = before[:, None] + group.forward, around[:, None] + group.passage
            if p < len(wires):
                out_s, back_s, load = wires[p]
                ahead, after = ahead + out_s[None, :], after + (out_s + back_s)[None, :]
                needs = np.maximum(needs, m * load[None, :] + commit)
            fine = self.possible & (needs <= seconds)
            before = np.where(fine, ahead, np.inf).min(axis=0)
            around = np.where(fine, after, np.inf).min(axis=0)
        return bool(np.isfinite(around[self.blocks]))

    def _group(self, group: tuple[str, ...]) -> _Figures:
        steps = np.array([self.step[d] for d in group])
        forwards = np.array([self.forward[d] for d in group])
        update = np.array([self.update[d] for d in group]).min(axis=0)
        if len(group) == 1:  # nobody to share a micro-batch with
            step = self.alone[group[0]]
            return _Figures(step, step, self.alone_forward[group[0]], update, np.zeros_like(update))
        busy = 1.0 / (1.0 / np.maximum(steps, 1e-12)).sum(axis=0)
        ahead = 1.0 / (1.0 / np.maximum(forwards, 1e-12)).sum(axis=0)
        if self.coupled:
            passage, ahead = steps.min(axis=0), forwards.min(axis=0)
        else:
            passage = busy
        tables = self.cost.tables
        quickest = min(sum(tables.transfer_s(one, other, 1.0) for other in group if other != one) for one in group)
        return _Figures(busy, passage, ahead, update, 2 * self.size / len(group) * quickest)

    def _wires(self, a: tuple[str, ...], b: tuple[str, ...]) -> tuple[Array, Array, Array]:
        tables = self.cost.tables
        out = min(tables.transfer_s(x, y, 1.0) for x in a for y in b)
        back = min(tables.transfer_s(y, x, 1.0) for x in a for y in b)
        late = min(tables.latency_s(x, y) for x in a for y in b) + min(tables.latency_s(y, x) for x in a for y in b)
        out_s, back_s = self.out * out / len(a), self.back * back / len(b)
        return out_s + late / 2, back_s + late / 2, np.maximum(out_s, back_s)


def _least(device: DeviceTables, rows: int, *, forward: bool) -> Array:
    """Seconds of blocks [0, i) for a whole micro-batch, were every row as cheap as in the best part of one."""
    counts = {rows} | {r for r in (2, rows // 2, *device.rows) if 2 <= r <= rows}
    parts = [(device.forward(r) + (0.0 if forward else device.backward(r))) * (rows / r) for r in counts]
    per_block = np.min([np.diff(sums) for sums in parts], axis=0)
    return np.concatenate([[0.0], np.cumsum(per_block)])


def _differences(sums: Array) -> Array:
    return sums[None, :] - sums[:, None]

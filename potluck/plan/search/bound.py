"""A round that no plan can beat, so that the user sees how far from perfect a plan can possibly be."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Array, DeviceTables
from potluck.plan.search.sequences import Groups, all_sequences

THOROUGH_DEVICES = 5  # up to here every sequence of groups is looked at
_STEP = 0.995  # the bound is found to within this factor
_BENT = (0.0, 0.25, 0.5, 0.75, 1.0)  # how much lines count for the weights of members, beside work
_PIECES = 8  # in which gradients are sent, and one for each member
_What = Literal["all", "forward", "awaited"]
_DOUBLINGS = 60  # of the time that is surely enough; what takes longer has no use for a bound


def lower_bound_s(cost: CostModel, deadline: float = float("inf")) -> float:
    """Seconds that every plan of this cost model needs at least, by the cost model and by the event simulation.

    With few devices: for every sequence of groups the least time in which, for some cuts, each stage can do its work
    after the first micro-batch has come to it and before the last one's gradients have gone back. With many, or when
    time is up: all devices busy all the time with what they do best.

    Both hold for every schedule that flushes: whatever a stage does first, some micro-batch has come to it through all
    the stages before, and whatever it does last, gradients go back through them. In between it only has to do its work.
    """
    bound = _Bound(cost)
    busy = bound.everybody_busy_s()
    devices = tuple(cost.tables.devices)
    if len(devices) > THOROUGH_DEVICES or not cost.schedule.flushes:
        return busy
    least = float("inf")
    for groups in all_sequences(devices):
        if time.monotonic() > deadline:
            return busy
        least = bound.improve(groups, least, busy)
        if least <= busy:
            return busy
    return max(least * _STEP, busy) if np.isfinite(least) else busy


@dataclass(frozen=True)
class _Figures:
    """A group on every run of blocks [i, j), at its best."""

    members: int
    busy: Array  # seconds of a micro-batch, of the whole group
    awaited: Array  # of these, what others may wait for: all but weight gradients that can be put off
    passage: Array  # of one micro-batch, forward and backward, as far as others wait for it
    forward: Array
    update: Array
    late: Array  # until the gradients of a round are summed, if that begins after the last backward
    early: Array  # and if it begins with it


@dataclass(frozen=True)
class _Wires:
    """What passes between two groups with a cut before each block."""

    out: Array  # seconds of one micro-batch
    back: Array
    load: Array  # seconds for which a line is taken, of one micro-batch


class _Bound:
    """Optimistic figures of groups: work divides without loss, lines are as fast as the fastest."""

    def __init__(self, cost: CostModel) -> None:
        self.cost, self.blocks = cost, len(cost.facts.blocks)
        devices = cost.tables.devices.items()
        self.step = {d: _differences(_least(t, cost.rows, "all")) for d, t in devices}
        self.forward = {d: _differences(_least(t, cost.rows, "forward")) for d, t in devices}
        self.awaited = {d: self._later(_least(t, cost.rows, "awaited"), self.step[d]) for d, t in devices}
        self.alone = {d: _differences(_sums(_seconds(t, cost.rows, "all"))) for d, t in devices}
        self.alone_awaited = {
            d: self._later(_sums(_seconds(t, cost.rows, "awaited")), self.alone[d]) for d, t in devices
        }
        self.alone_forward = {d: _differences(t.forward(cost.rows)) for d, t in devices}
        self.update = {d: _differences(t.update) for d, t in devices}
        whole = [b.coupled for b in cost.facts.blocks]
        self.whole = _differences(_sums(whole)) > 0  # where micro-batches cannot be cut
        self.size = _differences(_sums([b.trainable_bytes for b in cost.facts.blocks]))
        # Whether a stage that begins at a block surely has gradients to send back.
        self.sends_back = np.zeros((self.blocks + 1, 1), dtype=bool)
        for crossing in cost.facts.crossings:
            if crossing.gradient:
                self.sends_back[list(crossing.consumers)] = True
        self.possible = np.tri(self.blocks + 1, k=-1, dtype=bool).T
        self._look_at_cuts()

    def _later(self, sums: Array, whole: Array) -> Array:
        """A first stage puts nothing off."""
        found = _differences(sums)
        found[0] = whole[0]
        return found

    def _look_at_cuts(self) -> None:
        """What surely goes from one stage to the next: from the block before a cut to the one behind it.

        What passes over a stage goes another way, and what has no gradient holds nobody up on the way back.
        """
        self.out, self.back = np.zeros((2, self.blocks + 1))
        self.follows: NDArray[np.bool_]  # whether the stage behind a cut waits for the one before it
        self.returns: NDArray[np.bool_]  # and the other way round
        self.follows, self.returns = np.zeros((2, self.blocks + 1), dtype=bool)
        for crossing in self.cost.facts.crossings:
            cut = crossing.producer + 1
            if cut in crossing.consumers:
                size = self.cost.rows * self.cost.stations.edges.row_bytes(crossing)
                self.out[cut] += size
                self.follows[cut] = True
                if crossing.gradient:
                    self.back[cut] += size
                    self.returns[cut] = True

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
            load = np.bincount(chosen, weights=work[chosen, np.arange(self.blocks)], minlength=len(work))
            weights = weights * (1.0 + 0.2 / (1 + turn) * (load / max(float(load.mean()), 1e-12) - 1.0)).clip(0.5, 2.0)
        return best

    def improve(self, groups: Groups, least: float, floor: float) -> float:
        """The smaller of `least` and what this sequence needs at least, to within a step; not below `floor`."""
        spans = [self._group(g) for g in groups]
        wires = [self._wires(a, b) for a, b in itertools.pairwise(groups)]
        floor = max(floor, 1e-9)
        if np.isinf(least):
            least = 2.0 * floor
            for _ in range(_DOUBLINGS):
                if self._possible(spans, wires, least):
                    break
                least *= 2.0
            else:
                return float("inf")
        elif not self._possible(spans, wires, least * _STEP):
            return least
        if self._possible(spans, wires, floor):
            return floor
        low = floor
        while low < least * _STEP:  # it is never possible at `low`, always at `least`
            middle = float(np.sqrt(low * least))
            low, least = (low, middle) if self._possible(spans, wires, middle) else (middle, least)
        return least

    def _possible(self, spans: list[_Figures], wires: list[_Wires], seconds: float) -> bool:
        """Whether some cuts let every stage finish in time. The less a stage has waited, the better for all after it.

        `before` is what passes until a stage can begin, `after` what is left to do when it has ended, `around` both;
        summing gradients happens at the same time as what is left.
        """
        m, commit = self.cost.micro_batches, self.cost.tables.commit_s(sum(group.members for group in spans))
        before = np.full(self.blocks + 1, np.inf)
        before[0] = 0.0
        after = around = before
        for p, group in enumerate(spans):
            begin = np.maximum(before[:, None], group.update)
            whole = np.maximum(around[:, None], after[:, None] + group.update)
            later = np.arange(self.blocks + 1)[:, None] > 0  # later stages sum when they have sent their gradients
            summed = np.where(later & self.sends_back, group.late, group.early)
            # What is put off has to be done by the end, beside what earlier stages have left to do.
            needs = np.maximum(whole + m * group.awaited, begin + np.maximum(summed, m * group.busy)) + commit
            ahead, left = begin + group.forward, after[:, None] + (group.passage - group.forward)
            both = whole + group.passage
            if p < len(wires):
                wire = wires[p]
                needs = np.maximum(needs, m * wire.load[None, :] + commit)
                ahead = np.where(self.follows, ahead + wire.out, 0.0)
                both = np.where(self.follows, both + wire.out + wire.back, left + wire.back)
                both = np.where(self.returns, both, ahead)
                left = np.where(self.returns, left + wire.back, 0.0)
            fine = self.possible & (needs <= seconds)
            before, after, around = (np.where(fine, s, np.inf).min(axis=0) for s in (ahead, left, both))
        return bool(np.isfinite(around[self.blocks]))

    def _group(self, group: tuple[str, ...]) -> _Figures:
        steps = np.array([self.step[d] for d in group])
        forwards = np.array([self.forward[d] for d in group])
        update = np.array([self.update[d] for d in group]).min(axis=0)
        m = self.cost.micro_batches
        if len(group) == 1:  # nobody to share a micro-batch with
            step = self.alone[group[0]]
            awaited = self.alone_awaited[group[0]]
            return _Figures(1, step, awaited, awaited, self.alone_forward[group[0]], update, m * step, m * step)
        early = np.array([self.awaited[d] for d in group])
        busy, awaited, ahead = (1.0 / (1.0 / np.maximum(s, 1e-12)).sum(axis=0) for s in (steps, early, forwards))
        passage = np.where(self.whole, early.min(axis=0), awaited)
        ahead = np.where(self.whole, forwards.min(axis=0), ahead)
        alone = np.array([self.alone[d] for d in group])
        backward = alone - np.array([self.alone_forward[d] for d in group])
        late, turns = self._summed_s(group, m * steps), self._summed_s(group, m * alone, backward)
        samples = self._summed_s(group, (m - 1) * steps + forwards)
        hidden = np.where(self.whole, turns, np.minimum(turns, samples))
        return _Figures(len(group), busy, awaited, passage, ahead, update, late, hidden)

    def _summed_s(self, group: tuple[str, ...], work: Array, but: Array | float = 0.0) -> Array:
        """The least seconds in which members can do their parts of the work, but for so much, and then send gradients.

        Whoever adds up a part f of them sends 1 + (n - 2) f times their size. For any weights of the members that add
        up to one, the weighted mean of their seconds is at most the slowest one's.
        """
        count = len(group)
        rates = self.cost.tables.rates(group)
        line = np.where(np.eye(count, dtype=bool), np.inf, rates.lines).min(axis=1)[:, None, None]
        work, line = np.maximum(work, 1e-12), np.maximum(line, 1e-15)
        rounded = (_PIECES + count) * (count - 1)  # bytes of messages are whole numbers
        size, bare = np.maximum(self.size - rounded, 0), self.size
        best = np.zeros_like(self.size)
        for bent in _BENT:
            weights = 1.0 / (work ** (1 - bent) * line**bent)
            weights = weights / weights.sum(axis=0)
            sent = size * (weights * line).sum(axis=0) + bare * (count - 2) * (weights * line).min(axis=0)
            best = np.maximum(best, (weights * work).min(axis=0) - (weights * but).sum(axis=0) + sent)
        return best

    def _wires(self, a: tuple[str, ...], b: tuple[str, ...]) -> _Wires:
        tables = self.cost.tables
        out = self.out * min(tables.transfer_s(x, y, 1.0) for x in a for y in b) / len(a)
        back = self.back * min(tables.transfer_s(y, x, 1.0) for x in a for y in b) / len(b)
        late_out = min(tables.latency_s(x, y) for x in a for y in b)
        late_back = min(tables.latency_s(y, x) for x in a for y in b)
        return _Wires(out + late_out, back + late_back, np.maximum(out, back))


def _seconds(device: DeviceTables, rows: int, what: _What) -> Array:
    """The least seconds of each block for so many rows."""
    forward, backward, back, weights = (
        np.diff(sums(rows)) for sums in (device.forward, device.backward, device.late_back, device.late_weights)
    )
    if what == "forward":
        return forward
    return forward + np.minimum(backward, back if what == "awaited" else back + weights)


def _least(device: DeviceTables, rows: int, what: _What) -> Array:
    """Seconds of blocks [0, i) for a whole micro-batch, were every row as cheap as in the best part of one."""
    counts = {rows} | {r for r in (2, rows // 2, *device.rows) if 2 <= r <= rows}
    return _sums(np.min([_seconds(device, r, what) * (rows / r) for r in counts], axis=0))


def _sums(values: Sequence[float] | Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])


def _differences(sums: Array) -> Array:
    return sums[None, :] - sums[:, None]

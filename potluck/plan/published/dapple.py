"""DAPPLE's planner: synchronous pipelines with replicated stages, by the time of warm-up, steady phase and ending.

It takes devices for equal and links for one bandwidth, and ignores memory. Every transfer counts as a stage of its
own. Where it differs from the paper: the network has one level, so there is nothing to choose about placement, and
devices come in fleet order. A stage whose blocks may not be cut by samples is shared by turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potluck.plan.cost.tables import Array
from potluck.plan.groups import equal_plan
from potluck.plan.published.pipedream import in_order
from potluck.plan.published.uniform import Uniform
from potluck.types import ModelFacts, Plan, Profile


def dapple(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """The plan whose warm-up, steady phase and ending are shortest, on as many devices as can be used."""
    seen = Uniform(facts, profile, micro_batch_size, micro_batches)
    runs, _ = best_runs(seen)
    return equal_plan(in_order(runs, seen.devices), facts, micro_batch_size, micro_batches, sharing="samples")


class DappleStep(NamedTuple):
    """A stage, or a transfer between two."""

    forward_s: float
    backward_s: float
    reduce_s: float


def latency_s(steps: list[DappleStep], micro_batches: int) -> float:
    """Seconds of a round: warm-up to the pivot, the pivot's steady phase, and the last to end."""
    pivot = len(steps) - 1
    for s in range(len(steps) - 2, -1, -1):
        between = sum(x.forward_s + x.backward_s for x in steps[s + 1 : pivot])
        if _steady_s(steps[s], micro_batches) > _steady_s(steps[pivot], micro_batches) + between:
            pivot = s
    warm_up = sum(x.forward_s for x in steps[: pivot + 1])
    ending = max(
        x.reduce_s
        + (
            sum(y.backward_s for y in steps[s : pivot + 1])
            if s <= pivot
            else -sum(y.backward_s for y in steps[pivot : s + 1])
        )
        for s, x in enumerate(steps)
    )
    return warm_up + _steady_s(steps[pivot], micro_batches) + ending


def _steady_s(step: DappleStep, micro_batches: int) -> float:
    return (micro_batches - 1) * (step.forward_s + step.backward_s)


class Costs:
    """What stages and transfers cost, for any blocks and any number of replicas."""

    def __init__(self, seen: Uniform) -> None:
        self.seen = seen
        self.most = max(1, min(len(seen.devices), max(seen.rows // 2, seen.micro_batches)))

    def stage(self, i: int, j: int) -> tuple[Array, Array, Array]:
        """Forward, backward and all-reduce seconds of blocks [i, j) on 1, 2, … devices."""
        seen = self.seen
        found = np.full((3, self.most + 1), np.inf)
        by_turns = bool(seen.coupled[i, j])
        for r in range(1, 2 if seen.exclusive[i, j] else self.most + 1):
            if r > 1 and r > (seen.micro_batches if by_turns else seen.rows // 2):
                break
            rows, part = (seen.rows, r) if by_turns else (-(-seen.rows // r), 1)
            for place, sums in enumerate((seen.forward(rows) / part, seen.backward(rows) / part, seen.all_reduce_s(r))):
                found[place, r] = sums[j] - sums[i]
        return found[0], found[1], found[2]

    def transfer(self, cut: int) -> DappleStep:
        """The link before a block."""
        seen = self.seen
        sizes = (float(seen.rows * seen.out[cut]), float(seen.rows * seen.back[cut]))
        return DappleStep(sizes[0] / seen.bandwidth, sizes[1] / seen.bandwidth, 0.0)


@dataclass(frozen=True)
class _Tail:
    """The best way to run blocks [i, end) on n devices, for each n. Sums count from the first step of the tail."""

    pivot_s: Array  # forward and backward of the pivot
    before_s: Array  # forward and backward of all steps before the pivot
    pivot_back_s: Array
    until: Array  # max over steps up to the pivot: reduce − backwards of the steps before
    beyond: Array  # max over steps after the pivot: reduce − backwards up to it
    all: Array  # the same over all steps

    def seconds(self, micro_batches: int) -> Array:
        ending = np.maximum(self.until, self.beyond - self.pivot_back_s)
        return micro_batches * self.pivot_s + self.before_s + ending

    @classmethod
    def none(cls, devices: int) -> _Tail:
        """Nothing found yet, for any number of devices."""
        return cls.alone(*(np.full(devices + 1, x) for x in (np.inf, 0.0, 0.0)))

    @classmethod
    def alone(cls, forward: Array, backward: Array, reduce: Array) -> _Tail:
        """The last stage by itself."""
        zero = np.zeros(forward.shape)
        return cls(forward + backward, zero, backward + zero, reduce + zero, zero - np.inf, reduce - backward)

    def take(self, places: NDArray[np.intp] | tuple[NDArray[np.intp], ...]) -> _Tail:
        return _Tail(*(figures[places] for figures in self._figures()))

    def replaced(self, where: NDArray[np.bool_], by: _Tail) -> _Tail:
        return _Tail(*(np.where(where, new, old) for new, old in zip(by._figures(), self._figures(), strict=True)))

    def _figures(self) -> tuple[Array, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def after(self, forward: Array, backward: Array, reduce: Array, *, micro_batches: int) -> _Tail:
        """This tail with one more step in front. The pivot moves there if its steady phase is longer than all."""
        both = forward + backward
        moves = (micro_batches - 1) * both > (micro_batches - 1) * self.pivot_s + self.before_s
        return _Tail(
            pivot_s=np.where(moves, both, self.pivot_s),
            before_s=np.where(moves, 0.0, self.before_s + both),
            pivot_back_s=np.where(moves, backward, self.pivot_back_s),
            until=np.where(moves, reduce, np.maximum(reduce, self.until - backward)),
            beyond=np.where(moves, self.all - backward, self.beyond - backward),
            all=np.maximum(self.all, reduce) - backward,
        )


def best_runs(seen: Uniform) -> tuple[list[tuple[int, int, int]], float]:
    """(start, stop, devices) of each stage, and seconds. As published: of every tail on n devices the best is kept."""
    costs, count, devices = Costs(seen), seen.count, len(seen.devices)
    tails: list[_Tail] = [_Tail.none(devices)] * (count + 1)
    choices = np.zeros((count + 1, devices + 1, 2), dtype=int)
    best = np.full(devices + 1, np.inf)
    for i in range(count - 1, -1, -1):
        best = np.full(devices + 1, np.inf)
        for j in range(i + 1, count + 1):
            with np.errstate(invalid="ignore"):  # what cannot be is infinite
                seconds, members, tail = _with_head(costs, i, j, tails[j])
            better = seconds < best
            best = np.where(better, seconds, best)
            tails[i] = tails[i].replaced(better, tail)
            choices[i, better] = np.stack([np.full_like(members, j), members], axis=1)[better]
    used = max(m for m in range(1, devices + 1) if np.isfinite(best[m]))
    runs, i, whole_s = [], 0, float(best[used])
    while i < count:
        j, group = (int(x) for x in choices[i, used])
        runs.append((i, j, group))
        i, used = j, used - group
    return runs, whole_s


def _with_head(costs: Costs, i: int, j: int, tail: _Tail) -> tuple[Array, NDArray[np.intp], _Tail]:
    """Blocks [i, j) in front of a tail: seconds, devices of the new stage and the longer tail, for each n."""
    seen, micro_batches = costs.seen, costs.seen.micro_batches
    count = len(seen.devices) + 1
    n, members = np.meshgrid(np.arange(count), np.arange(costs.most + 1), indexing="ij")
    left = n - members
    forward, backward, reduce = (np.broadcast_to(x, n.shape) for x in costs.stage(i, j))
    if j == seen.count:
        longer = _Tail.alone(np.where(left == 0, forward, np.inf), backward, reduce)
    else:
        link = [np.full(n.shape, x) for x in costs.transfer(j)]
        longer = tail.take(np.maximum(left, 0)).after(*link, micro_batches=micro_batches)
        longer = longer.after(forward, backward, reduce, micro_batches=micro_batches)
    seconds = np.nan_to_num(longer.seconds(micro_batches), nan=np.inf)
    seconds = np.where((left < 0) | ~np.isfinite(forward), np.inf, seconds)
    place = np.argmin(seconds, axis=1)
    everyone = np.arange(count)
    return seconds[everyone, place], place, longer.take((everyone, place))

"""Who adds up which gradients, in which order: decided alike on every device, from the plan alone.

What `plan/cost/buckets.py` says of bytes is done here with parameters, which are never cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.plan.cost.buckets import pieces
from potluck.plan.cost.summing import parts_of
from potluck.types import Plan

Holders = tuple[str, ...]  # devices, in the order of addition


@dataclass(frozen=True)
class ParameterBucket:
    """Parameters whose gradients are summed in one go."""

    number: int
    adder: str
    holders: Holders
    names: tuple[str, ...]
    statistics: bool = False  # whether running statistics of the group travel with it


@dataclass(frozen=True)
class Sums:
    """All buckets of a plan, in the order in which a backward pass has them."""

    buckets: tuple[ParameterBucket, ...]

    def answerable(self, device: str, own: Sequence[str]) -> list[str]:
        """Of what is summed, what the device adds up; and of its own parameters those that are not summed."""
        summed = {name for bucket in self.buckets for name in bucket.names}
        added = [name for bucket in self.buckets if bucket.adder == device for name in bucket.names]
        return added + [name for name in own if name not in summed]


def share_sums(
    plan: Plan, users: Mapping[str, Sequence[int]], sizes: Mapping[str, int], statistics: Sequence[bool]
) -> Sums:
    """Who adds up what: `users` are the stages that use a trainable parameter, owner first, in the order of the model.

    `statistics` says of each stage whether it has running statistics.
    """
    together: dict[Holders, list[str]] = {}
    for name, stages in users.items():
        devices = tuple(m.device for s in stages for m in plan.stages[s].group)
        if len(devices) > 1:
            together.setdefault(devices, []).append(name)
    weights = {device: part for stage in plan.stages for device, part in parts_of(stage.group).items()}
    found: list[ParameterBucket] = []
    for holders, names in together.items():
        for adder, some in _runs(holders, names[::-1], sizes, weights):
            found.append(ParameterBucket(len(found), adder, holders, some))
    for stage, has in zip(plan.stages, statistics, strict=True):
        if has and len(stage.group) > 1:
            group = tuple(m.device for m in stage.group)
            place = next((i for i, b in enumerate(found) if b.holders == group), None)
            if place is None:  # nothing to train there
                found.append(
                    ParameterBucket(len(found), max(stage.group, key=lambda m: m.sums).device, group, (), True)
                )
            else:
                first = found[place]
                found[place] = ParameterBucket(first.number, first.adder, first.holders, first.names, True)
    return Sums(tuple(found))


def _runs(
    holders: Holders, names: Sequence[str], sizes: Mapping[str, int], weights: Mapping[str, float]
) -> list[tuple[str, tuple[str, ...]]]:
    """Adders and what they add up, in the order given."""
    cut = pieces({device: weights[device] for device in holders})
    runs: list[tuple[str, list[str]]] = [(piece.adder, []) for piece in cut]
    total, done, place, end = sum(sizes[n] for n in names), 0.0, 0, cut[0].part
    for name in names:
        middle = (done + sizes[name] / 2) / max(total, 1)
        while middle > end and place + 1 < len(cut):
            place += 1
            end += cut[place].part
        runs[place][1].append(name)
        done += sizes[name]
    return [(device, tuple(some)) for device, some in runs if some]

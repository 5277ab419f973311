"""Plans for those who are left: as close as can be to the plan in force, so that little has to move.

A device with peers leaves its share to them. The blocks of a stage that nobody is left of go to its neighbours, or to
a device that had nothing to do, or to one that its group can spare. Which of these is best, a cost model decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import combinations, islice, product

from msgspec.structs import replace

from potluck.errors import PlanError
from potluck.plan.groups import proportional_shares
from potluck.types import Member, Plan, Stage

_SecondsOfPlan = Callable[[Plan], float]  # what a plan costs; infinite for one that does not fit or may not be
_MANY_SWAPS = 120  # tried in all: everybody waits for this plan
_MANY_CUTS = 8  # tried for each stage, where several are lost: their numbers multiply


def nearest(
    plan: Plan,
    lost: Collection[str],
    idle: Sequence[str],
    seconds: _SecondsOfPlan,
    apart: Sequence[tuple[str, str]] = (),
) -> Plan | None:
    """The fastest of the plans that are close to the one in force; None if there is none that can be run.

    Of each pair `apart`, which do not reach each other, one at most is in it.
    """
    left = [device for device in plan.devices if device not in lost]
    quarrels = [pair for pair in apart if set(pair) <= set(left)]
    if not lost and not quarrels:
        return plan
    ways = dict.fromkeys(frozenset({*lost, *out}) for out in product(*quarrels))
    fewest = min(map(len, ways))  # whom nobody reaches has a quarrel with each, and is the cause
    offered = (candidate for gone in ways if len(gone) == fewest for candidate in candidates(plan, gone, idle))
    allowed = (candidate for candidate in offered if not in_conflict(candidate.devices, apart))
    best = min(((seconds(candidate), n, candidate) for n, candidate in enumerate(allowed)), default=None)
    return None if best is None or best[0] == float("inf") else best[2]


def in_conflict(devices: Collection[str], apart: Iterable[tuple[str, str]]) -> list[str]:
    """Those of some devices that do not reach another of them."""
    return list(dict.fromkeys(d for pair in apart if set(pair) <= set(devices) for d in pair))


def estranged(devices: Collection[str], apart: Iterable[tuple[str, str]]) -> set[str]:
    """Others that do not reach one of some devices."""
    return {d for pair in apart if set(pair) & set(devices) for d in pair if d not in devices}


def settled(plan: Plan, idle: Sequence[str], seconds: _SecondsOfPlan) -> Plan:
    """The plan with its devices in each other's places, or idle ones in theirs, as long as that costs less.

    A plan that was found without a look at who holds what has equal devices in any order.
    """
    cost, left = seconds(plan), _MANY_SWAPS
    while left > 0:
        others = list(islice(_swapped(plan, idle), left))
        left -= len(others)
        best = min(((seconds(other), n, other) for n, other in enumerate(others)), default=None)
        if best is None or best[0] >= cost:
            break
        cost, _, plan = best
    return plan


def _swapped(plan: Plan, idle: Sequence[str]) -> Iterator[Plan]:
    """Every plan in which two devices have changed places."""
    others = [d for d in idle if d not in plan.devices]
    for one, other in (*combinations(plan.devices, 2), *product(plan.devices, others)):
        places = {one: other, other: one}
        stages = (
            replace(s, group=tuple(replace(m, device=places.get(m.device, m.device)) for m in s.group))
            for s in plan.stages
        )
        yield replace(plan, stages=tuple(stages))


def candidates(plan: Plan, lost: Collection[str], idle: Sequence[str] = ()) -> Iterator[Plan]:
    """Plans without the lost devices, that differ from the plan only where they must."""
    stages = [_without(stage, lost, plan) for stage in plan.stages]
    for filled in _filled(stages, idle, plan):
        try:
            yield replace(plan, stages=tuple(replace(s, depth=None) for s in filled))
        except PlanError:
            continue


def _without(stage: Stage, lost: Collection[str], plan: Plan) -> Stage:
    left = [member for member in stage.group if member.device not in lost]
    return stage if len(left) == len(stage.group) else _regrouped(stage, left, plan)


def _regrouped(stage: Stage, members: Sequence[Member], plan: Plan) -> Stage:
    """The stage with these members, whose shares grow or shrink in proportion; possibly with nobody."""
    if not members:
        return replace(stage, group=())
    if len(members) == 1:
        only = replace(members[0], share=plan.micro_batches, sums=1)
        return replace(stage, group=(only,), sharing="turns")
    total, least = (plan.micro_batch_size, 2) if stage.sharing == "samples" else (plan.micro_batches, 1)
    members = members[: total // least]
    shares = proportional_shares([m.share for m in members], total, least)
    summing = any(m.sums for m in members)
    group = (replace(m, share=s, sums=m.sums if summing else 1) for m, s in zip(members, shares, strict=True))
    return replace(stage, group=tuple(group))


def _filled(stages: list[Stage], idle: Sequence[str], plan: Plan) -> Iterator[list[Stage]]:
    """Every way to fill the first stage that nobody holds, and then the others."""
    empty = next((i for i, stage in enumerate(stages) if not stage.group), None)
    if empty is None:
        yield stages
        return
    for filled, still_idle in (*_shifts(stages, empty, idle), *_takers(stages, empty, idle, plan)):
        yield from _filled(filled, still_idle, plan)


def _shifts(stages: list[Stage], empty: int, idle: Sequence[str]) -> Iterator[tuple[list[Stage], Sequence[str]]]:
    """The neighbours take the blocks: all cuts between them."""
    start, stop = stages[empty].blocks
    before = next((i for i in range(empty - 1, -1, -1) if stages[i].group), None)
    after = empty + 1 if empty + 1 < len(stages) else None
    several = sum(not stage.group for stage in stages) > 1
    step = max(1, (stop - start) // _MANY_CUTS) if several else 1
    for cut in (*range(start, stop, step), stop):
        if (before is None and cut > start) or (after is None and cut < stop):
            continue
        changed = list(stages)
        if before is not None:
            changed[before] = replace(changed[before], blocks=(changed[before].blocks[0], cut))
        if after is not None:
            changed[after] = replace(changed[after], blocks=(cut, changed[after].blocks[1]))
        del changed[empty]
        yield changed, idle


def _takers(
    stages: list[Stage], empty: int, idle: Sequence[str], plan: Plan
) -> Iterable[tuple[list[Stage], Sequence[str]]]:
    """One device takes the stage: one that has nothing to do, or the last of a group that has others."""
    for device in idle:
        changed = list(stages)
        changed[empty] = _alone(stages[empty], device, plan)
        yield changed, [d for d in idle if d != device]
    for index, stage in enumerate(stages):
        if len(stage.group) > 1:
            for member in stage.group:
                changed = list(stages)
                others = [m for m in stage.group if m.device != member.device]
                changed[index] = _regrouped(stage, others, plan)
                changed[empty] = _alone(stages[empty], member.device, plan)
                yield changed, idle


def _alone(stage: Stage, device: str, plan: Plan) -> Stage:
    return replace(stage, group=(Member(device=device, share=plan.micro_batches),), sharing="turns")

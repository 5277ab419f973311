"""Who holds which stage, and whose turn it is."""

from __future__ import annotations

from potluck.errors import PlanError
from potluck.types import Plan, Stage


def stage_of(plan: Plan, device: str) -> int:
    for index, stage in enumerate(plan.stages):
        if any(member.device == device for member in stage.group):
            return index
    raise PlanError(f"plan: device {device!r} holds no stage; use one of {', '.join(plan.devices)}")


def turns(stage: Stage, micro_batches: int) -> tuple[str, ...]:
    """The device that has each of the first `micro_batches` micro-batches of a round.

    Smooth weighted round-robin over the shares: everybody gains its share at each step, and the richest (the first of
    equals) pays the total to have the micro-batch. A shorter round is a prefix of the full one.
    """
    if len(stage.group) == 1:
        return (stage.group[0].device,) * micro_batches
    total = sum(member.share for member in stage.group)
    if stage.sharing != "turns" or micro_batches > total:
        raise ValueError(f"{micro_batches} turns of a group sharing {total} by {stage.sharing}")
    credit = [0] * len(stage.group)
    order = []
    for _ in range(micro_batches):
        credit = [have + member.share for have, member in zip(credit, stage.group, strict=True)]
        richest = credit.index(max(credit))
        credit[richest] -= total
        order.append(stage.group[richest].device)
    return tuple(order)


def own_micro_batches(stage: Stage, device: str, micro_batches: int) -> frozenset[int]:
    """Those that a device of the stage takes part in."""
    if len(stage.group) == 1 or stage.sharing == "samples":
        return frozenset(range(micro_batches))
    return frozenset(j for j, holder in enumerate(turns(stage, micro_batches)) if holder == device)

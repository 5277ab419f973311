"""Which plans give the same bits. Floating-point addition is not associative: it is a matter of who adds what in which
order."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from potluck.compress.codec_registry import codec_named
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.schedules import order_of
from potluck.types import RAW, ModelFacts, Plan


def why_not_uncut(plan: Plan, facts: ModelFacts) -> str:
    """Why a plan gives other bits than one device that adds in the order of the plan's groups; "": it does not."""
    return why_changed_on_the_way(plan) or why_added_otherwise(plan, facts)


def why_changed_on_the_way(plan: Plan) -> str:
    """Why what arrives behind a cut is not what was made before it; "": it is. Nothing leaves the last stage."""
    rounded = [(i, s.codec) for i, s in enumerate(plan.stages[:-1]) if not codec_named(s.codec).exact]
    parts = [f"what leaves stage {i}, and the gradients that come back, are rounded by codec {c!r}" for i, c in rounded]
    return " and ".join(parts)


def said_exact(plan: Plan) -> str:
    """Which codecs of a plan are in use and say that they change nothing; "": none but `raw`."""
    named = dict.fromkeys(s.codec for s in plan.stages[:-1] if s.codec != RAW and codec_named(s.codec).exact)
    return " and ".join(f"codec {name!r} says that it is exact" for name in named)


def why_added_otherwise(plan: Plan, facts: ModelFacts) -> str:
    """Why gradients are not added in the order of the plan's groups; "": they are."""
    for index, stage in enumerate(plan.stages):
        if len(stage.group) > 1 and stage.sharing == "samples":
            return f"stage {index} is shared by samples, so gradients are added in another order"
        if not _in_turn(plan, index):
            return f"stage {index} runs micro-batches backward out of turn, so gradients are added in another order"
    for name, users in facts.tied:
        stages = {i for i, s in enumerate(plan.stages) for b in users if s.blocks[0] <= b < s.blocks[1]}
        if len(stages) > 1:
            return f"{name} is tied across a cut, so its gradients are added in another order"
    return ""


def _in_turn(plan: Plan, stage: int) -> bool:
    """Whether backwards come in the order of micro-batches, which is the order that one device adds in."""
    order = order_of(schedule_named(plan.schedule), plan.depth(stage), plan.micro_batches)
    backwards = [j for work, j in order if work == "backward"]
    return backwards == sorted(backwards)


def why_not_alike(plans: Collection[Plan], facts: ModelFacts, machines: Mapping[str, Hashable]) -> str:
    """Why a round may come out with other bits by one of these plans than by another; "": it does not.

    `machines` says of each device what decides how it rounds.
    """
    if len({machines.get(device) for plan in plans for device in plan.devices}) > 1:
        return "devices are of several kinds, and each rounds in its own way"
    for plan in plans:
        if any(len(stage.group) > 1 for stage in plan.stages):
            return "a stage is shared by a group, so gradients are added in another order"
        if why := why_added_otherwise(plan, facts):
            return why
        if len(plans) > 1 and (why := why_changed_on_the_way(plan)):
            return why
    return ""

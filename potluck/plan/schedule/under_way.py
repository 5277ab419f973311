"""How much is under way: in a stage, and between two of them."""

from __future__ import annotations

from itertools import accumulate

from potluck.plan.schedule.holders import own_micro_batches, stage_of
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.schedules import Schedule, order_of
from potluck.types import Plan, Stage


def in_flight(plan: Plan, device: str) -> int:
    """Most micro-batches that the device has run forward and not yet backward, in a full round."""
    index = stage_of(plan, device)
    schedule = schedule_named(plan.schedule)
    return most_in_flight(schedule, plan.stages[index], device, plan.depth(index), plan.micro_batches)


def most_in_flight(schedule: Schedule, stage: Stage, device: str, depth: int, micro_batches: int) -> int:
    """The same for a stage by itself. In a group by turns, only the device's own micro-batches count."""
    mine = own_micro_batches(stage, device, micro_batches)
    if len(mine) == micro_batches:
        return schedule.in_flight(depth, micro_batches)
    order = order_of(schedule, depth, micro_batches)
    return max(accumulate(1 if work == "forward" else -1 for work, j in order if j in mine), default=0)


def backlog(plan: Plan, earlier: int, later: int) -> int:
    """Micro-batches that may wait between two stages that exchange tensors, in each direction: a link's room."""
    return schedule_named(plan.schedule).backlog(plan.depth(earlier), plan.depth(later), plan.micro_batches)

"""A schedule may be somebody else's code: what it answers for a plan is looked at before anything is trained."""

from __future__ import annotations

from potluck.advice import described, one_line
from potluck.errors import PlanError
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.schedules import Schedule
from potluck.plan.schedule.visits import visits
from potluck.types import Plan

MOST_ASKED = 64  # rounds with fewer micro-batches than the plan has that are looked at: it has to be quick


def check_schedule(plan: Plan) -> None:
    """PlanError, with the schedule's name, unless it can run the rounds of the plan: short ones too."""
    schedule, depths = schedule_named(plan.schedule), tuple(plan.depth(i) for i in range(len(plan.stages)))
    _check_depths(schedule, depths, plan.micro_batches)
    visits(schedule, depths, plan.micro_batches)  # which refuses what deadlocks
    for fewer in range(1, min(plan.micro_batches, MOST_ASKED + 1)):
        try:
            visits(schedule, depths, fewer)
        except PlanError as error:
            raise PlanError(f"{error} (the last round of an epoch may have only {fewer})") from error
    for depth in dict.fromkeys(depths):
        most_open = Schedule.in_flight(schedule, depth, plan.micro_batches)
        _check_count(schedule, "in_flight", most_open, depth, plan.micro_batches)
        _check_count(schedule, "versions", 1, depth)
    for later in range(1, len(depths)):
        _check_count(schedule, "backlog", 1, depths[later - 1], depths[later], plan.micro_batches)


def _check_depths(schedule: Schedule, depths: tuple[int, ...], micro_batches: int) -> None:
    for index in range(len(depths)):
        wrong = _answer(schedule, "wrong_depth", depths, index, micro_batches)
        if not isinstance(wrong, str):
            fix = 'let it give a text, "" where nothing is wrong'
            raise PlanError(f"plan: schedule: {schedule.name!a}: wrong_depth gave {described(wrong)}; {fix}")
        if wrong:
            raise PlanError(f"plan: stages[{index}].depth: {wrong}")


def _check_count(schedule: Schedule, method: str, least: int, *given: int) -> None:
    found = _answer(schedule, method, *given)
    if not isinstance(found, int) or found < least:
        words = f"{method} gave {ascii(found)[:80]} for {', '.join(map(str, given))}"
        fix = f"let it give a whole number, at least {least}"
        raise PlanError(f"plan: schedule: {schedule.name!a}: {words}; {fix}")


def _answer(schedule: Schedule, method: str, *given: object) -> object:
    try:
        return getattr(schedule, method)(*given)
    except PlanError:  # of its order, which is named already
        raise
    except Exception as error:
        raise PlanError(f"plan: schedule: {schedule.name!a}: {method} failed ({one_line(error)}); repair it") from error

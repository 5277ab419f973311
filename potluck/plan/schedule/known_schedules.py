"""Which schedules there are: ours, and those that extensions add."""

from __future__ import annotations

from potluck.errors import InputError, PlanError
from potluck.plan.schedule.one_f_one_b import OneForwardOneBackward
from potluck.plan.schedule.schedules import Schedule
from potluck.plan.schedule.steady import Steady

_KNOWN: dict[str, Schedule] = {}


def register(schedule: Schedule) -> None:
    """Plans may name it from now on."""
    if _KNOWN.get(schedule.name, schedule) is not schedule:
        raise InputError(f"schedule {schedule.name!a}: there is one already; give yours another name")
    _KNOWN[schedule.name] = schedule


def schedule_named(name: str) -> Schedule:
    if name not in _KNOWN:
        fix = "name the file that adds it in POTLUCK_EXTENSIONS on this machine"
        raise PlanError(f"plan: schedule: {name!a} is not known here; use one of {', '.join(_KNOWN)}, or {fix}")
    return _KNOWN[name]


def schedule_for(staleness: int) -> str:
    """The name of our schedule with gradients so many steps late."""
    return next(name for name, schedule in _OURS.items() if schedule.staleness == staleness)


_OURS: dict[str, Schedule] = {schedule.name: schedule for schedule in (OneForwardOneBackward(), Steady())}
for _schedule in _OURS.values():
    register(_schedule)

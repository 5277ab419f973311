"""Which schedules there are: ours, and those that extensions add."""

from __future__ import annotations

from potluck.advice import described
from potluck.errors import InputError, PlanError
from potluck.plan.schedule.one_f_one_b import OneForwardOneBackward
from potluck.plan.schedule.schedules import Schedule
from potluck.plan.schedule.steady import Steady

_KNOWN: dict[str, Schedule] = {}


def register(schedule: Schedule) -> None:
    """Plans may name it from now on."""
    if isinstance(schedule, type):
        of = ascii(getattr(schedule, "name", schedule.__name__))
        raise InputError(f"schedule {of}: the class itself is given; register one of it: {schedule.__name__}()")
    if not isinstance(schedule, Schedule):
        of = ascii(getattr(schedule, "name", type(schedule).__name__))
        fix = "make its class one: class NAME(Schedule), of potluck.plan.schedule.schedules"
        raise InputError(f"schedule {of}: it is {described(schedule)}, which is no Schedule; {fix}")
    if not isinstance(getattr(schedule, "name", None), str):
        raise InputError(f"schedule {type(schedule).__name__!a}: it has no name; see docs/extending.md")
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

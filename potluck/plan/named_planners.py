"""Planners by the names that users give after `--planner`, and how somebody adds one (docs/extending.md)."""

from __future__ import annotations

from msgspec.structs import replace

from potluck.advice import did_you_mean, one_line
from potluck.errors import InputError, PlanError
from potluck.plan.baselines import PLANNERS, Planner
from potluck.plan.validate import validate
from potluck.types import Fleet, ModelFacts, Plan, Profile

OWN = "potluck"  # which searches, and is asked in another way
_ADDED: dict[str, Planner] = {}


def register_planner(name: str, planner: Planner) -> None:
    """Adds a planner that users may name. It is given facts, profile, micro-batch size and number of micro-batches.

    Our own search does not ask it, as it asks those of `PLANNERS`: nobody knows how long it takes.
    """
    if name in planner_names():
        raise InputError(f"planner {name!r}: there is one of this name; give it another")
    _ADDED[name] = planner


def planner_names() -> tuple[str, ...]:
    """Every planner that there is, our own first."""
    return (OWN, *PLANNERS, *_ADDED)


def check_planner(name: str) -> None:
    """Raises unless there is such a planner."""
    names = planner_names()
    if name not in names:
        raise InputError(f"--planner: {name!r} is not known; {did_you_mean(name, names)}")


def planned_by(name: str, facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """The plan of a planner that is not our own; what somebody added has to make one that can be run, if it fits."""
    if name in PLANNERS:
        return PLANNERS[name](facts, profile, micro_batch_size, micro_batches)
    try:
        plan = _ADDED[name](facts, profile, micro_batch_size, micro_batches)
        validate(plan, facts, Fleet(devices=tuple(replace(d.device, memory_bytes=0) for d in profile.devices)))
    except Exception as error:
        why = one_line(error)
        raise PlanError(
            f"--planner: {name} made no plan that can be run ({why}); repair it, or name another"
        ) from error
    return plan

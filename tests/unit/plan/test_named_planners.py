"""Planners by name: ours, and those that somebody else adds."""

from __future__ import annotations

import pytest

from potluck.errors import InputError, PlanError
from potluck.plan import named_planners
from potluck.plan.baselines import PLANNERS, Planner, data_parallel, single_device
from potluck.plan.named_planners import check_planner, planned_by, planner_names, register_planner
from potluck.types import ModelFacts, Plan, Profile
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(0, 6)
PROFILE = a_profile(0, FACTS, [1.0, 0.5])


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_planners, "_ADDED", {})


def test_a_planner_of_somebody_else_is_asked_by_its_name() -> None:
    register_planner("theirs", single_device)
    check_planner("theirs")
    assert planner_names() == ("potluck", *PLANNERS, "theirs")
    assert planned_by("theirs", FACTS, PROFILE, 8, 4) == planned_by("single", FACTS, PROFILE, 8, 4)


@pytest.mark.parametrize("name", ["potluck", "asteroid"])
def test_a_name_that_there_is_cannot_be_taken(name: str) -> None:
    with pytest.raises(InputError, match=f"planner '{name}': there is one of this name"):
        register_planner(name, single_device)


def test_a_name_that_there_is_not_is_answered_with_those_that_there_are() -> None:
    register_planner("theirs", single_device)
    with pytest.raises(InputError, match=r"give one of potluck, .*, theirs$"):
        check_planner("zzz")
    with pytest.raises(InputError, match=r"did you mean theirs\?"):
        check_planner("thiers")


def _fails(facts: ModelFacts, profile: Profile, rows: int, count: int) -> Plan:
    raise KeyError("no\nidea")


def _leaves_blocks_out(facts: ModelFacts, profile: Profile, rows: int, count: int) -> Plan:
    return data_parallel(a_model(0, 5), profile, rows, count)


@pytest.mark.parametrize(
    ("planner", "why"), [(_fails, r"KeyError: 'no\\nidea'"), (_leaves_blocks_out, r"PlanError: .* leaves out the last")]
)
def test_what_cannot_be_run_is_refused_in_one_line(planner: Planner, why: str) -> None:
    register_planner("odd", planner)
    with pytest.raises(PlanError, match=f"^--planner: odd made no plan that can be run \\({why}.*; repair it") as it:
        planned_by("odd", FACTS, PROFILE, 8, 4)
    assert "\n" not in str(it.value)

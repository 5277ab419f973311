"""Why the plan does without a device, and what would change that."""

from __future__ import annotations

import pytest

from potluck.control.idle import idle_reasons, not_worth_it
from potluck.plan.search.ranking import NO_FIT
from potluck.simulate.small_model import even
from potluck.types import IdleReason

PLAN = even(["a", "b"], 2)
WORSE = "a device of the plan is lost, leaves or slows down"


def reason(**known: object) -> IdleReason:
    around = {"given": "", "apart": (), "left_out": {}, "looked_for": (), "before": {}} | known
    found = idle_reasons(PLAN, ["a", "b", "pi"], **around)  # type: ignore[arg-type]
    assert list(found) == ["pi"]  # who takes part is not idle
    return found["pi"]


def test_a_plan_that_was_given_stays_until_it_cannot() -> None:
    found = reason(given="the plan was given", left_out={"pi": "it would gain less than 1%"}, looked_for=["pi"])
    assert found.why == "the plan was given, so none with it is looked for"
    assert found.until == "a device of the plan is lost or leaves"


def test_otherwise_the_planner_says_why() -> None:
    found = reason(left_out={"pi": "it would gain less than 1%"})
    assert (found.why, found.until) == ("it would gain less than 1%", WORSE)


def test_one_that_may_lack_memory_can_do_something_about_it() -> None:
    found = reason(left_out={"pi": NO_FIT})
    assert (found.why, found.until) == (NO_FIT, f"it joins again with more memory, or {WORSE}")


def test_one_of_which_the_planner_has_not_said_anything_yet_is_told_that_it_will() -> None:
    found = reason(looked_for=["pi"], left_out={"pi": "it would gain less than 1%"})  # of before it came back
    assert found.why == "a plan with it is still looked for"
    assert reason().why == "no better plan with it is known"


def test_while_another_plan_is_looked_for_the_reason_stays_what_it_was() -> None:
    known = IdleReason(why="it would gain less than 1%", until=WORSE)
    assert reason(looked_for=["pi"], before={"pi": known}) == known
    assert reason(before={"pi": known}) != known


def test_one_that_does_not_reach_somebody_of_the_plan_is_told_whom() -> None:
    found = reason(apart=[("b", "pi")], given="the plan was given")
    assert (found.why, found.until) == ("it and b do not reach each other", "it joins again, or b is gone")
    assert reason(apart=[("pi", "other"), ("other", "b")]).until == WORSE  # whoever has no part holds nobody up


@pytest.mark.parametrize(
    ("gain", "why"),
    [
        (0.034, "the best plan with it would save 3.4% of a round, too little for a change"),
        (0.0, "with it the best plan found is no faster"),
        (-0.2, "with it the best plan found is no faster"),
    ],
)
def test_a_plan_that_is_not_worth_the_change_says_what_it_would_save(gain: float, why: str) -> None:
    assert not_worth_it(gain) == why

"""What the process that looks for a plan is asked, and what it answers."""

from __future__ import annotations

import msgspec

from potluck.coordinator.rounds.search_elsewhere import PlanAnswer, PlanRefusal, Question, answer
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(2, 8)
PROFILE = a_profile(1, FACTS, [1.0, 0.5, 0.25])


def asked(sizes: list[tuple[int, int]], schedule: str = "1f1b") -> PlanAnswer | PlanRefusal:
    question = Question(facts=FACTS, profile=PROFILE, sizes=sizes, seconds=0.3, schedule=schedule)
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(question), type=Question)
    assert heard == question
    return msgspec.msgpack.decode(msgspec.msgpack.encode(answer(heard)), type=PlanAnswer | PlanRefusal)


def test_the_plan_that_is_found_comes_back_as_it_was() -> None:
    told = asked([(8, 6)])
    assert isinstance(told, PlanAnswer)
    assert {*told.found.plan.devices} <= {d.device.name for d in PROFILE.devices}
    assert told.found.bound_s <= told.found.round_s


def test_what_cannot_be_looked_for_comes_back_in_words() -> None:
    told = asked([(8, 6)], schedule="nobody knows it")
    assert isinstance(told, PlanRefusal)
    assert "nobody knows it" in told.why

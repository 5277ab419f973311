"""A plan is looked for in a process of its own, which ends with whoever asked."""

from __future__ import annotations

import threading
import time

import psutil
import pytest

from potluck.coordinator.rounds.search_elsewhere import Question, SearchElsewhere
from potluck.errors import PlanError
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(2, 8)


def question(seconds: float, schedule: str = "1f1b") -> Question:
    profile = a_profile(1, FACTS, [1.0, 0.5, 0.25])
    return Question(facts=FACTS, profile=profile, sizes=[(8, 6)], seconds=seconds, schedule=schedule)


def test_a_plan_is_found_and_no_process_is_left() -> None:
    found = SearchElsewhere()(question(0.3))
    assert found.plan.stages
    assert not psutil.Process().children()


def test_why_nothing_is_found_is_told() -> None:
    with pytest.raises(PlanError, match="nobody knows it"):
        SearchElsewhere()(question(0.3, "nobody knows it"))


def test_a_search_ends_when_nobody_wants_it_any_more() -> None:
    search, failed = SearchElsewhere(), threading.Event()

    def ask() -> None:
        try:
            search(question(60.0))
        except PlanError:
            failed.set()

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 30.0
    while not psutil.Process().children() and time.monotonic() < deadline:
        time.sleep(0.01)
    search.close()
    assert failed.wait(30.0)
    asking.join(30.0)
    assert not psutil.Process().children()

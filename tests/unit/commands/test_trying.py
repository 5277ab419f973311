"""Which plan is tried next: the one expected to be the fastest, by what plans of its kind took so far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from potluck.commands import trying
from potluck.commands.trying import Attempt, _at_second_sight, _Proposals, rounds_to_try
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.plan.search.plan_search import Found
from potluck.types import Member, Plan, Profile, Stage

BLOCKS = 4
OPTIONS = Options(tries=4, plan_s=1.0, timeout_s=1.0)
PROFILE = cast(Profile, None)


def plan(*cuts: int, size: int = 4) -> Plan:
    """A pipeline with these cuts; one group without any."""
    ends = [*cuts, BLOCKS]
    stages = tuple(
        Stage(blocks=(start, stop), group=(Member(device=f"d{place}", share=2),))
        for place, (start, stop) in enumerate(zip([0, *cuts], ends, strict=True))
    )
    return Plan(micro_batch_size=size, micro_batches=2, stages=stages)


def found(best: Plan, round_s: float, other: tuple[Plan, float] | None = None) -> Found:
    other_kinds = () if other is None else (found(*other),)
    return Found(best, round_s, round_s, 0.0, (), None, None, 0.0, 1, other_kinds)


def tried(what: Plan, round_s: float) -> Attempt:
    return Attempt(found(what, 1.0), round_s, {})


def proposed(
    monkeypatch: pytest.MonkeyPatch, search: Found, *attempts: Attempt, level: Plan | None = None, last: bool = False
) -> Found | None:
    """What is tried next, where everything that was tried was predicted to take a second."""
    monkeypatch.setattr(trying, "find_plan", lambda *_, **__: search)
    monkeypatch.setattr(trying, "simulate", lambda *_: SimpleNamespace(round_s=1.0))
    monkeypatch.setattr(trying, "shareable", lambda *_: None)
    monkeypatch.setattr(trying, "Tables", lambda _: None)
    monkeypatch.setattr(trying, "levelled", lambda given, *_: level or given)
    prepared = cast(PreparedJob, SimpleNamespace(facts=None, job=SimpleNamespace(batchnorm=None, staleness=0)))
    return _Proposals(prepared, [], OPTIONS.plan_s).best(PROFILE, attempts, last=last)


def test_where_pipelines_disappoint_one_group_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    search = found(plan(2), 1.05, (plan(), 1.2))
    after = proposed(monkeypatch, search, tried(plan(1), 1.3))
    assert after is not None
    assert (after.plan, after.round_s) == (plan(), 1.2)


def test_where_they_keep_their_promise_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    search = found(plan(2), 0.95, (plan(), 1.2))
    after = proposed(monkeypatch, search, tried(plan(1), 1.0))
    assert after is not None
    assert after.plan == plan(2)


def test_what_is_expected_to_be_slower_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    search = found(plan(2), 1.05, (plan(), 1.5))
    assert proposed(monkeypatch, search, tried(plan(1), 1.3)) is None
    levelled = proposed(monkeypatch, search, tried(plan(1), 1.3), level=plan(3))
    assert levelled is not None
    assert levelled.plan == plan(3)


def test_a_kind_that_was_not_tried_gets_a_chance_though_it_is_expected_to_be_a_little_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = found(plan(2), 0.98, (plan(), 1.05))
    after = proposed(monkeypatch, search, tried(plan(1), 1.0))
    assert after is not None
    assert (after.plan, after.round_s) == (plan(), 1.05)
    after = proposed(monkeypatch, search, tried(plan(1), 1.0), tried(plan(size=8), 1.0))
    assert after is not None
    assert after.plan == plan(2)


def test_the_last_try_is_the_levelled_plan_unless_a_kind_that_may_be_faster_was_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def last(search: Found, *attempts: Attempt) -> Plan | None:
        after = proposed(monkeypatch, search, *attempts, level=plan(3), last=True)
        return None if after is None else after.plan

    may_be_faster, is_slower = (found(plan(2), 0.9, (plan(), seconds)) for seconds in (1.05, 1.2))
    assert last(may_be_faster, tried(plan(1), 1.0)) == plan()
    assert last(is_slower, tried(plan(1), 1.0)) == plan(3)
    assert last(may_be_faster, tried(plan(1), 1.0), tried(plan(size=8), 1.0)) == plan(3)  # of both kinds
    assert last(may_be_faster, tried(plan(3), 1.0), tried(plan(size=8), 1.0)) == plan(2)  # nothing to level


def test_one_that_promises_much_is_tried_though_its_kind_disappointed(monkeypatch: pytest.MonkeyPatch) -> None:
    search = found(plan(2), 1.0, (plan(), 1.9))
    after = proposed(monkeypatch, search, tried(plan(1), 2.0), tried(plan(), 1.5))
    assert after is not None
    assert (after.plan, after.round_s) == (plan(2), 1.0)
    assert proposed(monkeypatch, search, tried(plan(2), 2.0), tried(plan(), 1.5)) is None


@pytest.mark.parametrize(("looks", "kept"), [([1.3], 1.3), ([2.0, 1.1], 1.1), ([2.0, 2.5], 2.0)])
def test_a_plan_that_takes_far_too_long_is_looked_at_twice(
    monkeypatch: pytest.MonkeyPatch, looks: list[float], kept: float
) -> None:
    left = list(looks)
    monkeypatch.setattr(trying, "a_few_rounds", lambda *_: (left.pop(0), {}))
    live = cast(LiveFleet, SimpleNamespace(roster=SimpleNamespace(links={"d0": "", "d1": ""})))
    assert _at_second_sight(live, cast(PreparedJob, None), found(plan(2), 1.0), OPTIONS) == (kept, {})
    assert left == []


def test_one_that_lost_a_device_is_not_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "a_few_rounds", lambda *_: (2.0, {}))
    live = cast(LiveFleet, SimpleNamespace(roster=SimpleNamespace(links={"d0": ""})))
    assert _at_second_sight(live, cast(PreparedJob, None), found(plan(2), 1.0), OPTIONS) == (2.0, {})


def test_short_rounds_are_tried_more_often() -> None:
    assert [rounds_to_try(seconds) for seconds in (0.001, 0.5, 1.0, 2.0, 60.0)] == [12, 10, 5, 4, 4]


def test_plans_are_looked_for_with_gradients_as_late_as_the_job_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def search(*_: object, schedule: str, **__: object) -> None:
        asked.append(schedule)

    monkeypatch.setattr(trying, "find_plan", search)
    monkeypatch.setattr(trying, "shareable", lambda *_: None)
    for staleness in (0, 1):
        job = SimpleNamespace(batchnorm=None, staleness=staleness)
        prepared = cast(PreparedJob, SimpleNamespace(facts=None, job=job))
        _Proposals(prepared, [], OPTIONS.plan_s).best(PROFILE, [], last=False)
    assert asked == ["1f1b", "steady"]

"""The work of all stages in one list: for 1F1B the recurrence it was, for any schedule one that respects what waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import InputError, PlanError
from potluck.plan.schedule import known_schedules
from potluck.plan.schedule.known_schedules import register, schedule_named
from potluck.plan.schedule.one_f_one_b import OneForwardOneBackward
from potluck.plan.schedule.schedules import Pass, Schedule, order_of
from potluck.plan.schedule.visits import Visit, visits

some = settings(max_examples=200, deadline=None, derandomize=True)
ONE_F_ONE_B = OneForwardOneBackward()


class TwoByTwo(Schedule):
    """Two forwards, then their backwards, the later one first."""

    name = "two-by-two"

    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        pairs = [range(j, min(j + 2, micro_batches)) for j in range(0, micro_batches, 2)]
        ways: list[list[Pass]] = [
            [*(("forward", j) for j in pair), *(("backward", j) for j in reversed(pair))] for pair in pairs
        ]
        return [work for way in ways for work in way]


class Forgetful(Schedule):
    name = "forgetful"

    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        return ONE_F_ONE_B.order(depth, micro_batches)[:-1]


class Eager(Schedule):
    name = "eager"

    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        return [(work, j) for j in range(micro_batches) for work in ("backward", "forward")]


@st.composite
def depths(draw: st.DrawFn) -> tuple[int, ...]:
    """Those of a plan that is valid but for how deep it may be at most."""
    found: list[int] = []
    for left in range(1, draw(st.integers(1, 6)) + 1):
        found.insert(0, draw(st.integers(max(left, found[0] if found else 1), (found[0] if found else 1) + 4)))
    return tuple(found)


def recurrence(depths: Sequence[int], micro_batches: int) -> Iterator[Visit]:
    """At tick t a stage of depth K runs backward for t - K, later stages first, then forward for t."""
    stages = range(len(depths))
    for tick in range(micro_batches + max(depths)):
        for p in reversed(stages):
            if 0 <= tick - depths[p] < micro_batches:
                yield p, "backward", tick - depths[p]
        for p in stages:
            if tick < micro_batches:
                yield p, "forward", tick


@some
@given(depths(), st.integers(1, 14))
def test_one_forward_one_backward_is_the_recurrence_it_was(depths: tuple[int, ...], micro_batches: int) -> None:
    assert visits(ONE_F_ONE_B, depths, micro_batches) == tuple(recurrence(depths, micro_batches))


@some
@given(depths(), st.integers(1, 14), st.sampled_from([ONE_F_ONE_B, TwoByTwo()]))
def test_everything_a_visit_waits_for_stands_before_it(
    depths: tuple[int, ...], micro_batches: int, schedule: Schedule
) -> None:
    found = visits(schedule, depths, micro_batches)
    place = {visit: i for i, visit in enumerate(found)}
    for p, work, j in found:
        if work == "forward" and p:
            assert place[p - 1, "forward", j] < place[p, "forward", j]
        if work == "backward" and p + 1 < len(depths):
            assert place[p + 1, "backward", j] < place[p, "backward", j]
    for p, depth in enumerate(depths):
        assert [(work, j) for q, work, j in found if q == p] == list(order_of(schedule, depth, micro_batches))


@some
@given(st.integers(1, 9), st.integers(1, 14))
def test_as_many_are_in_flight_as_a_stage_is_deep(depth: int, micro_batches: int) -> None:
    assert ONE_F_ONE_B.in_flight(depth, micro_batches) == min(depth, micro_batches)
    assert TwoByTwo().in_flight(depth, micro_batches) == min(2, micro_batches)
    assert TwoByTwo().backlog(depth, depth, micro_batches) == 2
    assert TwoByTwo().versions(depth) == 1


def test_what_cannot_be_worked_through_is_refused_in_one_line() -> None:
    with pytest.raises(
        PlanError, match=r"^plan: schedule: 'forgetful' forgets .* of depth 2 with 3 .*; correct its order: "
    ):
        visits(Forgetful(), (2, 1), 3)
    with pytest.raises(
        PlanError, match=r"^plan: schedule: 'eager' deadlocks with depths 2, 1: stage 0 waits for ever to "
    ):
        visits(Eager(), (2, 1), 3)
    with pytest.raises(PlanError, match=r"^plan: schedule: '1f1b' deadlocks with depths 1, 2: stage 0 waits"):
        visits(ONE_F_ONE_B, (1, 2), 3)


class Asked(Schedule):
    """Answers what a test wants."""

    name = "asked"

    def __init__(self, answer: Callable[[int], Iterable[Pass]]) -> None:
        self.answer = answer

    def order(self, depth: int, micro_batches: int) -> Iterable[Pass]:
        return self.answer(micro_batches)


def one_by_one(micro_batches: int) -> Iterator[Pass]:
    for j in range(micro_batches):
        yield "forward", j
        yield "backward", j


def test_an_order_may_be_a_generator_and_is_asked_once() -> None:
    asked: list[int] = []

    def answer(micro_batches: int) -> Iterable[Pass]:
        asked.append(micro_batches)
        return one_by_one(micro_batches)

    schedule = Asked(answer)
    for _ in range(2):
        assert order_of(schedule, 1, 2) == (("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1))
    assert schedule.in_flight(1, 2) == 1
    assert asked == [2]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda n: 1 / 0, r"gives no order \(ZeroDivisionError: division by zero\)"),
        (lambda n: None, r"gives no order \(TypeError: 'NoneType' object is not iterable\)"),
        (lambda n: [("forwards", j) for j in range(n)], r"has \('forwards', 0\) in its order"),
        (lambda n: [("forward", n)], r"has \('forward', 3\) in its order"),
        (lambda n: (("forward", 0) for _ in iter(int, 1)), "forgets or repeats work"),
    ],
)
def test_what_is_no_order_is_refused_with_the_name_of_the_schedule(
    answer: Callable[[int], Iterable[Pass]], why: str
) -> None:
    with pytest.raises(PlanError, match=rf"^plan: schedule: 'asked' {why} in a stage of depth 2 with 3 .*; correct"):
        Asked(answer).in_flight(2, 3)


def test_a_name_is_of_one_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_schedules, "_KNOWN", {"1f1b": ONE_F_ONE_B})
    register(ONE_F_ONE_B)  # the very same
    with pytest.raises(InputError, match=r"^schedule '1f1b': there is one already; give yours another name$"):
        register(OneForwardOneBackward())
    assert schedule_named("1f1b") is ONE_F_ONE_B


def test_a_schedule_is_known_by_its_name_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_schedules, "_KNOWN", {"1f1b": ONE_F_ONE_B})
    with pytest.raises(PlanError, match=r"'two-by-two' is not known here; use one of 1f1b, or .*POTLUCK_EXTENSIONS"):
        schedule_named("two-by-two")
    register(TwoByTwo())
    assert isinstance(schedule_named("two-by-two"), TwoByTwo)

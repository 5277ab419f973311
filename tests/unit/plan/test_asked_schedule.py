"""A schedule of somebody else that answers wrongly is named in one line, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from potluck.errors import InputError, PlanError
from potluck.plan.schedule import known_schedules
from potluck.plan.schedule.asked_schedule import MOST_ASKED
from potluck.plan.schedule.known_schedules import register
from potluck.plan.schedule.schedules import Pass, Schedule
from potluck.plan.validate import validate
from potluck.types import Member, Plan, Stage
from tests.unit.builders import facts, fleet


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_schedules, "_KNOWN", dict(known_schedules._KNOWN))


class Theirs(Schedule):
    """All forwards, then all backwards; `answers` replaces what it says else."""

    name = "theirs"

    def __init__(self, **answers: Any) -> None:
        for method, answer in answers.items():
            setattr(self, method, answer if callable(answer) else lambda *given, answer=answer: answer)

    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        every = range(micro_batches)
        return [*(("forward", j) for j in every), *(("backward", j) for j in every)]


def check(schedule: Schedule, micro_batches: int = 8) -> None:
    register(schedule)
    stages = (Stage(blocks=(i, i + 1), group=(Member(device=f"d{i}", share=micro_batches),)) for i in range(2))
    plan = Plan(micro_batch_size=4, micro_batches=micro_batches, stages=tuple(stages), schedule="theirs")
    validate(plan, facts(2), fleet("d0", "d1"))


class Fixed(Theirs):
    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        return super().order(depth, 8)


class Hasty(Theirs):
    """Right where there are at least as many micro-batches as its pattern takes."""

    def order(self, depth: int, micro_batches: int) -> Iterator[Pass]:  # type: ignore[override]
        if micro_batches < 3 and depth == 1:
            yield from super().order(depth, micro_batches)[::-1]
        else:
            yield from super().order(depth, micro_batches)


def test_every_round_is_asked_for_that_may_be_the_last_of_an_epoch() -> None:
    asked: set[int] = set()

    class Asked(Theirs):
        def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
            asked.add(micro_batches)
            return super().order(depth, micro_batches)

    check(Asked())
    assert asked == set(range(1, 9))


def test_of_very_many_only_so_many_are_asked_for() -> None:
    asked: set[int] = set()

    class Asked(Theirs):
        def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
            asked.add(micro_batches)
            return super().order(depth, micro_batches)

    check(Asked(), 1000)
    assert asked == {*range(1, MOST_ASKED + 1), 1000}


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (Fixed(), "'theirs' has .'forward', 1. in its order in a stage of depth 2 with 1 micro-batches; .*only 1.$"),
        (Hasty(), r"'theirs' deadlocks with depths 2, 1: .* \(the last round of an epoch may have only 1\)$"),
        (
            Theirs(wrong_depth=True),
            r"'theirs': wrong_depth gave a bool; let it give a text, \"\" where nothing is wrong$",
        ),
        (Theirs(wrong_depth=None), r"'theirs': wrong_depth gave None; let it give a text"),
        (Theirs(wrong_depth=lambda: ""), r"'theirs': wrong_depth failed \(TypeError: .*\); repair it$"),
        (Theirs(in_flight=0), "'theirs': in_flight gave 0 for 2, 8; let it give a whole number, at least 8$"),
        (Theirs(in_flight=8.0), "'theirs': in_flight gave 8.0 for 2, 8; let it give a whole number, at least 8$"),
        (Theirs(versions=0), "'theirs': versions gave 0 for 2; let it give a whole number, at least 1$"),
        (Theirs(backlog=0), "'theirs': backlog gave 0 for 2, 1, 8; let it give a whole number, at least 1$"),
        (Theirs(backlog=lambda a, b, m: m / 2), "'theirs': backlog gave 4.0 for 2, 1, 8; let it give a whole number"),
    ],
)
def test_what_it_answers_wrongly_is_said_with_its_name(schedule: Schedule, why: str) -> None:
    with pytest.raises(PlanError, match=f"^plan: schedule: {why}"):
        check(schedule)


def test_what_is_no_schedule_is_refused_when_it_is_registered() -> None:
    class Alone:
        name = "alone"

    class Nameless(Schedule):
        def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
            return []

    for given, why in (
        (Theirs, r"^schedule 'theirs': the class itself is given; register one of it: Theirs\(\)$"),
        (Nameless, r"^schedule 'Nameless': the class itself is given; register one of it: Nameless\(\)$"),
        (
            Alone(),
            r"^schedule 'alone': it is an Alone, which is no Schedule; make its class one: class NAME\(Schedule\)",
        ),
        (Nameless(), "^schedule 'Nameless': it has no name; see docs/extending.md$"),
    ):
        with pytest.raises(InputError, match=why):
            register(given)  # type: ignore[arg-type]

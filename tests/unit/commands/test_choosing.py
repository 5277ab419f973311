"""Which micro-batches are tried, and what is said of the plan that was found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.commands.choosing import PlannedJob, micro_batch_choices
from potluck.job.job import Job
from potluck.plan.search.plan_search import Found
from tests.unit.builders import chain, facts


def choices(
    batch_size: int, micro_batch: int, *, given: bool = False, coupled: tuple[int, ...] = ()
) -> list[tuple[int, int]]:
    job = SimpleNamespace(
        batch_size=batch_size, micro_batch=micro_batch, micro_batch_size=micro_batch if given else None
    )
    return micro_batch_choices(cast(Any, SimpleNamespace(job=cast(Job, job), facts=facts(3, coupled=coupled))))


def test_half_and_twice_the_usual_size_are_tried_too() -> None:
    assert choices(32, 8) == [(8, 4), (4, 8), (16, 2)]


def test_none_is_tried_that_does_not_divide_the_batch_or_is_a_single_sample() -> None:
    assert choices(30, 6) == [(6, 5), (3, 10)]
    assert choices(8, 2) == [(2, 4), (4, 2)]
    assert choices(4, 4) == [(4, 1), (2, 2)]


def test_a_batch_of_one_sample_stays_as_it_is() -> None:
    assert choices(1, 1) == [(1, 1)]


def test_what_the_user_gave_or_another_size_would_make_another_model_of_stays() -> None:
    assert choices(32, 8, given=True) == [(8, 4)]
    assert choices(32, 8, coupled=(1,)) == [(8, 4)]


@pytest.mark.parametrize(
    ("bound_s", "measured_s", "words"),
    [
        (0.01, None, "found among 1,234 in 2.0 s: 15.0 ms a round, 1.50 times what no plan can beat"),
        (0.01, 0.018, "15.0 ms a round, 18.0 ms when it was tried, 1.50 times"),
        (0.0, None, "1.00 times what no plan can beat"),
    ],
)
def test_the_reason_says_how_good_the_plan_is(bound_s: float, measured_s: float | None, words: str) -> None:
    found = Found(chain(2), 0.015, 0.015, bound_s, (), None, None, 2.0, 1234, ())
    assert words in PlannedJob(found, cast(Any, None), measured_s).reason

"""Learning-rate multipliers are functions of the round alone."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import InputError
from potluck.job.learning_rates import Constant, Cosine, Linear, Step, multiplier


def test_each_schedule_at_its_corners():
    assert [Constant()(r) for r in (0, 99)] == [1, 1]
    assert [Step(every=2, gamma=0.5)(r) for r in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    assert Cosine(total=10)(0) == 1
    assert Cosine(total=10)(5) == pytest.approx(0.5)
    assert [Cosine(total=10, floor=0.1)(r) for r in (10, 11)] == [pytest.approx(0.1)] * 2
    assert [Linear(total=4, end=0.2)(r) for r in (0, 2, 4, 9)] == pytest.approx([1, 0.6, 0.2, 0.2])


def test_warm_up_climbs_to_one_and_the_rest_is_counted_from_its_end():
    assert [Constant(warmup=4)(r) for r in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    warmed = Cosine(total=12, warmup=2)
    assert [warmed(r) for r in range(2, 13)] == [Cosine(total=10)(r) for r in range(11)]
    assert [Step(every=2, gamma=0.5, warmup=3)(r) for r in (3, 4, 5)] == [1, 1, 0.5]


@given(st.integers(0, 10**6), st.integers(0, 50), st.integers(1, 1000))
def test_multipliers_stay_between_the_floor_and_one(round, warmup, length):
    for schedule in (
        Cosine(total=warmup + length, floor=0.0, warmup=warmup),
        Linear(total=warmup + length, warmup=warmup),
    ):
        assert 0 <= schedule(round) <= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(warmup=-1),
        lambda: Step(every=0),
        lambda: Step(every=1, gamma=-1.0),
        lambda: Cosine(total=5, warmup=5),
        lambda: Linear(total=0),
        lambda: Linear(total=5, end=math.nan),
    ],
)
def test_impossible_schedules_are_refused(make):
    with pytest.raises(InputError, match="schedule"):
        make()


def test_a_function_of_the_round_is_checked():
    assert multiplier(None, 3) == 1
    assert multiplier(Constant(warmup=2), 0) == 0.5
    assert multiplier(lambda r: r / 2, 3) == 1.5
    wrongs: list[Any] = [lambda r: math.nan, lambda r: -1.0, lambda r: "fast", lambda r: None]
    for wrong in wrongs:
        with pytest.raises(InputError, match="for round 7"):
            multiplier(wrong, 7)

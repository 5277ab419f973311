"""The course of a loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from potluck.paramserver.curve import Curve, Reward, fit, reward

TRUE = Curve(slope=0.02, start=0.5, floor=0.3, error=0.0)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.005, 0.2), st.floats(0.3, 1.0), st.floats(0.0, 0.5))
@example(0.1875, 1.0, 0.0022925515619081076)  # a floor between two rough ones
def test_a_course_without_noise_is_followed(slope: float, start: float, floor: float) -> None:
    true = Curve(slope, start, floor, 0.0)
    times = [float(t) for t in range(0, 120, 6)]
    found = fit(times, [true.at(t) for t in times])
    assert found is not None
    assert all(found.at(t) == pytest.approx(true.at(t), rel=0.03) for t in times)


def test_one_wild_loss_sways_the_plain_fit_and_not_the_robust_one() -> None:
    times = [float(t) for t in range(0, 100, 5)]
    losses = [TRUE.at(t) for t in times]
    losses[13] += 2.0
    goal = TRUE.at(150.0)

    def off(robust: bool) -> float:
        found = fit(times, losses, robust=robust)
        return math.inf if found is None else abs(found.reward(TRUE.at(0.0), goal) * 150.0 - 1)

    assert off(robust=True) < 0.1 < off(robust=False)


def test_the_reward_is_the_inverse_of_the_time_to_the_goal() -> None:
    assert TRUE.reward(TRUE.at(20.0), TRUE.at(80.0)) == pytest.approx(1 / 60.0)
    assert TRUE.reward(2.0, 0.29) == 0.0  # below the floor
    assert TRUE.reward(1.0, 1.0) == 0.0


def test_noise_shows_in_the_error() -> None:
    times = [float(t) for t in range(0, 100, 4)]
    goal = TRUE.at(150.0)
    errors = []
    for noise in (0.001, 0.02):
        off = np.random.default_rng(3).normal(0, noise, len(times)).tolist()
        found = reward(times, [TRUE.at(t) + o for t, o in zip(times, off, strict=True)], TRUE.at(0.0), goal)
        assert found is not None
        errors.append(found.error)
    assert errors[0] < errors[1] / 3


def test_what_cannot_be_fitted_is_none() -> None:
    assert fit([0.0, 1.0], [2.0, 1.0]) is None
    assert fit([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]) is None  # it rises
    assert fit([0.0, 1.0, 2.0, 3.0], [2.0, math.nan, 1.0, math.inf]) is None
    few = reward([0.0, 1.0, 2.0], [3.0, 2.0, 1.5], 3.0, 1.0)
    assert few is not None
    assert 0 < few.value < few.error == math.inf


def test_better_means_by_more_than_chance() -> None:
    assert Reward(2.0, 0.1).better_than(Reward(1.0, 0.1))
    assert not Reward(2.0, 1.0).better_than(Reward(1.0, 1.0))
    assert not Reward(2.0, math.inf).better_than(Reward(1.0, 0.0))

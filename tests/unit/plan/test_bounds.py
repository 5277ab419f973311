"""What a bound on staleness gives, and when it is recommended."""

from __future__ import annotations

from dataclasses import replace

from potluck.plan.search.bounds import bounds, recommended, words
from potluck.plan.search.plan_search import find_plan
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(0, 12)
SIZES = [(8, 8)]


def test_on_slow_lines_a_step_late_is_recommended_and_costs_memory() -> None:
    profile = a_profile(0, FACTS, [1.0, 0.5, 0.5, 0.25], bandwidth=3e6)
    now = find_plan(FACTS, profile, SIZES, seconds=0.7)
    outlooks = bounds(FACTS, profile, SIZES, {0: now}, 0.7)
    assert [one.staleness for one in outlooks] == [0, 1]
    assert outlooks[0].found is now
    assert outlooks[1].rounds_per_hour > 1.1 * outlooks[0].rounds_per_hour
    assert recommended(outlooks) == 1
    assert "recommended: staleness 1" in words(outlooks)
    assert "times as many" in words(outlooks)
    assert outlooks[1].device in outlooks[1].found.plan.devices


def test_one_device_gains_nothing_by_a_late_gradient() -> None:
    profile = a_profile(0, FACTS, [1.0])
    outlooks = bounds(FACTS, profile, SIZES, {}, 0.3)
    assert recommended(outlooks) == 0
    assert words(outlooks).endswith("recommended: staleness 0")
    assert outlooks[1].most_bytes > outlooks[0].most_bytes  # two versions of the weights


def test_a_gain_that_predictions_cannot_tell_is_none() -> None:
    profile = a_profile(0, FACTS, [1.0])
    [base, _] = bounds(FACTS, profile, SIZES, {}, 0.3)
    almost = replace(base, staleness=1, found=replace(base.found, round_s=base.found.round_s / 1.02))
    clearly = replace(base, staleness=1, found=replace(base.found, round_s=base.found.round_s / 1.05))
    assert recommended([base, almost]) == 0
    assert recommended([base, clearly]) == 1

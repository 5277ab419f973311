"""The choice among many micro-batch sizes."""

from __future__ import annotations

import pytest

from potluck.plan.search.plan_search import find_plan
from tests.models.planner_instances import instance

SIZES = [(size, 48 // size) for size in (2, 4, 6, 8, 12, 16, 24, 48)]


@pytest.mark.parametrize("seed", range(3))
def test_the_best_size_is_among_those_searched(seed: int) -> None:
    facts, profile = instance(seed, 3, 5, memory=False)
    apart = {size: find_plan(facts, profile, [size], seconds=0.5).round_s for size in SIZES}
    together = find_plan(facts, profile, SIZES, seconds=3.0)
    assert together.round_s <= 1.03 * min(apart.values()), apart

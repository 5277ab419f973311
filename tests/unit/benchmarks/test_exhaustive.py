"""The exhaustive search passes over plans only where they cannot win."""

from __future__ import annotations

import pytest

from benchmarks.exhaustive import all_that_fit, best_of_all
from potluck.plan.cost.round_time import CostModel
from tests.models.planner_instances import instance


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_was_passed_over_is_faster(seed: int) -> None:
    cost = CostModel(*instance(seed, 3, 5), 8, 8)
    best, line = best_of_all(cost)
    assert line is not None
    assert best == min(cost.seconds(list(all_that_fit(cost))))

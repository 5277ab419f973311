"""The cuts of published planners against every cut there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from potluck.plan.published.chains import slowest_fastest
from potluck.plan.published.pipedream import best_runs, in_order, link_s, stage_s
from potluck.plan.published.uniform import Uniform
from tests.unit.plan.instances import a_model, a_profile


def every_cut(blocks: int, stages: int) -> Iterator[list[tuple[int, int]]]:
    for inner in combinations(range(1, blocks), stages - 1):
        yield list(pairwise([0, *inner, blocks]))


@pytest.mark.parametrize(("seed", "stages"), [*product(range(5), (1, 2, 3))])
def test_the_slowest_stage_or_link_is_as_fast_as_any_cut_makes_it(seed: int, stages: int) -> None:
    chance, blocks = np.random.default_rng(seed), 6
    costs = [np.concatenate([[0.0], np.cumsum(chance.uniform(0.1, 1, blocks))]) for _ in range(stages)]
    links = [chance.uniform(0.1, 1.5, blocks) for _ in range(stages - 1)]

    def slowest(cuts: list[tuple[int, int]]) -> float:
        steps = [float(cost[b] - cost[a]) for cost, (a, b) in zip(costs, cuts, strict=True)]
        return max([*steps, *(float(link[a]) for link, (a, _) in zip(links, cuts[1:], strict=True))])

    cuts, seconds = slowest_fastest(costs, links)
    assert seconds == pytest.approx(min(slowest(cut) for cut in every_cut(blocks, stages)))
    assert slowest(cuts) == pytest.approx(seconds)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("exclusive", [(), (1,)])
def test_pipedream_finds_the_best_of_all_its_plans(seed: int, exclusive: tuple[int, ...]) -> None:
    facts = a_model(seed, 4, exclusive=exclusive, weight=2e5)
    seen = Uniform(facts, a_profile(seed, facts, [1.0, 1.0, 2.0]), 8, 4)
    links = link_s(seen)

    def slowest(runs: list[tuple[int, int, int]]) -> float:
        steps = [float(stage_s(seen, r)[a, b]) for a, b, r in runs]
        return max([*steps, *(float(links[a]) for a, _, _ in runs[1:])])

    found = best_runs(seen)
    used = sum(members for _, _, members in found)
    others = [
        [(*blocks, r) for blocks, r in zip(cuts, members, strict=True)]
        for stages in range(1, used + 1)
        for cuts in every_cut(4, stages)
        for members in product(range(1, used + 1), repeat=stages)
        if sum(members) == used
    ]
    assert slowest(found) == pytest.approx(min(map(slowest, others)))
    assert all(members == 1 for a, b, members in found if any(a <= e < b for e in exclusive))


def test_devices_are_taken_as_they_come() -> None:
    assert in_order([(0, 2, 1), (2, 5, 2)], ("a", "b", "c")) == [((0, 2), ("a",)), ((2, 5), ("b", "c"))]

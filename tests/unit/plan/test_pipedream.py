"""PipeDream's planner, against every plan of the kind that it looks at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from potluck.plan.published.pipedream import best_runs, in_order, link_s, pipedream, stage_s
from potluck.plan.published.uniform import Uniform
from tests.models.planner_instances import instance

Runs = list[tuple[int, int, int]]
ROWS, MICRO_BATCHES = 8, 4


def every_runs(blocks: int, devices: int, start: int = 0) -> Iterator[Runs]:
    """All ways to cut the blocks from here on and give each piece some of exactly so many devices."""
    if start == blocks and devices == 0:
        yield []
    for stop in range(start + 1, blocks + 1):
        for members in range(1, min(devices, MICRO_BATCHES) + 1):
            for rest in every_runs(blocks, devices - members, stop):
                yield [(start, stop, members), *rest]


def slowest_s(seen: Uniform, runs: Runs) -> float:
    stages = [float(stage_s(seen, members)[start, stop]) for start, stop, members in runs]
    return max([*stages, *(float(link_s(seen)[start]) for start, _, _ in runs[1:])])


@pytest.mark.parametrize("seed", range(8))
def test_no_other_plan_on_all_devices_has_a_faster_slowest_stage_or_link(seed: int) -> None:
    seen = Uniform(*instance(seed, 4, 5, memory=False), ROWS, MICRO_BATCHES)
    found = best_runs(seen)
    every = list(every_runs(5, 4))
    assert found in every
    assert slowest_s(seen, found) == pytest.approx(min(slowest_s(seen, runs) for runs in every))


def test_blocks_that_are_never_shared_get_one_device_and_who_is_left_over_stays_idle() -> None:
    facts, profile = instance(0, 4, 2, memory=False)
    alone = replace(facts, blocks=tuple(replace(block, exclusive=True) for block in facts.blocks))
    assert best_runs(Uniform(alone, profile, ROWS, MICRO_BATCHES)) == [(0, 1, 1), (1, 2, 1)]
    assert pipedream(alone, profile, ROWS, MICRO_BATCHES).devices == ("d0", "d1")


def test_a_stage_has_no_more_devices_than_there_are_turns() -> None:
    facts, profile = instance(0, 4, 1, memory=False)
    assert best_runs(Uniform(facts, profile, ROWS, 2)) == [(0, 1, 2)]


def test_a_shared_stage_is_as_slow_as_its_share_of_the_work_or_its_sums() -> None:
    seen = Uniform(*instance(1, 3, 2, memory=False), ROWS, MICRO_BATCHES)
    step = float((seen.forward(ROWS) + seen.backward(ROWS))[2])
    sums = 2 * (3 - 1) / 3 * seen.weights[2] / seen.bandwidth / MICRO_BATCHES
    assert stage_s(seen, 3)[0, 2] == pytest.approx(max(step / 3, sums))
    assert np.isinf(stage_s(seen, 1)[2, 1])


def test_devices_are_taken_as_they_come() -> None:
    assert in_order([(0, 2, 2), (2, 3, 1)], ("a", "b", "c", "d")) == [((0, 2), ("a", "b")), ((2, 3), ("c",))]


def test_the_plan_has_the_stages_that_were_found_with_equal_turns() -> None:
    facts, profile = instance(2, 4, 5, memory=False)
    plan = pipedream(facts, profile, ROWS, MICRO_BATCHES)
    found = best_runs(Uniform(facts, profile, ROWS, MICRO_BATCHES))
    assert [(*s.blocks, len(s.group)) for s in plan.stages] == found
    assert plan.devices == ("d0", "d1", "d2", "d3")
    assert all(sum(m.share for m in s.group) == MICRO_BATCHES for s in plan.stages)

"""Cuts for devices in a given order, against every other cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from potluck.plan.published.chains import ftpipehd, hetpipe, slowest_fastest, worker_cuts
from potluck.plan.published.uniform import Uniform
from potluck.types import BlockProfile, DeviceProfile, DeviceSpec, LinkProfile, Profile, Timing
from tests.models.planner_instances import instance
from tests.unit.builders import facts

Cuts = list[tuple[int, int]]


def equal_blocks(speeds: list[float], blocks: int) -> Profile:
    """Devices that are known by their speeds alone, on links without limit."""

    def device(name: str, speed: float) -> DeviceProfile:
        cell = Timing(rows=4, forward_s=1 / speed, backward_s=2 / speed, kept_bytes=0, working_bytes=0)
        return DeviceProfile(device=DeviceSpec(name=name), blocks=(BlockProfile(timings=(cell,)),) * blocks)

    return Profile(program="0" * 64, devices=tuple(device(f"d{i}", s) for i, s in enumerate(speeds)))


def slowest_s(cuts: Cuts, costs: list[np.ndarray], links: list[np.ndarray]) -> float:
    stages = [float(cost[stop] - cost[start]) for cost, (start, stop) in zip(costs, cuts, strict=True)]
    return max([*stages, *(float(link[start]) for link, (start, _) in zip(links, cuts[1:], strict=True))])


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 2**32))
def test_no_other_cut_has_a_faster_slowest_stage_or_link(stages: int, more: int, seed: int) -> None:
    rng, blocks = np.random.default_rng(seed), stages + more
    costs = [np.concatenate([[0.0], np.cumsum(rng.uniform(0.1, 2.0, blocks))]) for _ in range(stages)]
    links = [rng.uniform(0.0, 3.0, blocks) for _ in range(stages - 1)]
    found, seconds = slowest_fastest(costs, links)
    every = [list(pairwise((0, *inner, blocks))) for inner in combinations(range(1, blocks), stages - 1)]
    assert found in every
    assert seconds == pytest.approx(slowest_s(found, costs, links))
    assert seconds == pytest.approx(min(slowest_s(cuts, costs, links) for cuts in every))


def test_ftpipehd_gives_blocks_in_proportion_to_speed_in_the_order_of_the_fleet() -> None:
    plan = ftpipehd(facts(7), equal_blocks([2.0, 4.0, 1.0], 7), 4, 8)
    assert [(s.blocks, s.group[0].device) for s in plan.stages] == [((0, 2), "d0"), ((2, 6), "d1"), ((6, 7), "d2")]


def test_ftpipehd_cuts_where_little_crosses_if_the_link_is_slow() -> None:
    model, fast = facts(4, sample_bytes=1000), equal_blocks([1.0, 1.0], 4)
    model = replace(model, crossings=(replace(model.crossings[0], sample_bytes=1), *model.crossings[1:]))
    slow = replace(fast, links=(LinkProfile(source="d0", target="d1", bandwidth_bytes_s=750.0),))
    assert [s.blocks for s in ftpipehd(model, fast, 4, 8).stages] == [(0, 2), (2, 4)]
    # There and back take 2 · 4 · 1000 / 750 s over the middle, and three blocks 9 s.
    assert [s.blocks for s in ftpipehd(model, slow, 4, 8).stages] == [(0, 1), (1, 4)]


def test_with_more_devices_than_blocks_the_last_ones_stay_idle() -> None:
    assert ftpipehd(facts(2), equal_blocks([1.0, 1.0, 9.0], 2), 4, 8).devices == ("d0", "d1")


@pytest.mark.parametrize("seed", range(5))
def test_hetpipe_takes_as_many_virtual_workers_as_make_rounds_shortest(seed: int) -> None:
    model, profile = instance(seed, 4, 6, memory=False)
    seen = Uniform(model, profile, 8, 4)
    by_speed = sorted(seen.devices, key=lambda d: seen.tables.devices[d].step_s((0, 6), 8))
    seconds = {workers: worker_cuts(seen, by_speed, workers)[1] for workers in (1, 2, 3, 4)}
    plan = hetpipe(model, profile, 8, 4)
    workers = len(plan.stages[0].group)
    assert seconds[workers] == min(seconds.values())
    assert plan.devices == tuple(by_speed[: workers * len(plan.stages)])
    assert all(len(stage.group) == workers for stage in plan.stages)


def test_a_block_that_is_never_shared_leaves_one_virtual_worker() -> None:
    profile = equal_blocks([1.0, 1.0, 1.0, 1.0], 2)
    shared, alone = (hetpipe(model, profile, 4, 8) for model in (facts(2), facts(2, exclusive=(1,))))
    assert [len(s.group) for s in shared.stages] == [2, 2]
    assert [len(s.group) for s in alone.stages] == [1, 1]


def test_a_virtual_worker_pays_for_summing_once_a_round() -> None:
    model = facts(2, weight_bytes=4000)
    slow = replace(equal_blocks([1.0, 1.0], 2), links=instance(0, 2, 2)[1].links)
    few, many = (worker_cuts(Uniform(model, slow, 4, count), ["d0", "d1"], 2)[1] for count in (1, 4))
    without = worker_cuts(Uniform(facts(2, weight_bytes=0), slow, 4, 1), ["d0", "d1"], 2)[1]
    assert few - without == pytest.approx(4 * (many - without))
    assert few > without

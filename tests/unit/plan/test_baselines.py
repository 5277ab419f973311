"""Baseline planners: each reaches the optimum of its own objective, and every plan can be run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from potluck.errors import PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.edges import Edges
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.groups import busy_depths, proportional_shares, stage_by
from potluck.plan.published import asteroid, dapple
from potluck.plan.published.asteroid_costs import Ground, allocate
from potluck.plan.published.uniform import Uniform
from potluck.plan.validate import validate
from potluck.types import DeviceSpec, Fleet, ModelFacts, Plan, Profile
from tests.unit.plan.instances import a_model, a_profile

ROWS, MICRO_BATCHES = 8, 6
Runs = tuple[tuple[int, int, int], ...]  # (start, stop, devices) of each stage


def without_limits(profile: Profile) -> Fleet:
    return Fleet(devices=tuple(DeviceSpec(name=d.device.name) for d in profile.devices))


def all_runs(blocks: int, devices: int) -> Iterator[Runs]:
    """Every way to cut the blocks and give each stage some of the devices, all of which are used."""
    for stages in range(1, min(blocks, devices) + 1):
        for cuts in itertools.combinations(range(1, blocks), stages - 1):
            for bars in itertools.combinations(range(1, devices), stages - 1):
                ends = itertools.pairwise((0, *cuts, blocks))
                sizes = (b - a for a, b in itertools.pairwise((0, *bars, devices)))
                yield tuple((i, j, r) for (i, j), r in zip(ends, sizes, strict=True))


def runs_of(plan: Plan) -> Runs:
    return tuple((*s.blocks, len(s.group)) for s in plan.stages)


class Mean:
    """Equal devices and one bandwidth, as some planners see a fleet. Written apart from the code under test."""

    def __init__(self, facts: ModelFacts, profile: Profile) -> None:
        self.facts = facts
        self.tables = list(Tables(profile).devices.values())
        rates = [x.bandwidth_bytes_s for x in profile.links if "coordinator" not in (x.source, x.target)]
        self.bandwidth = float(np.mean([r for r in rates if r is not None]))
        self.cuts = [*Edges(facts).at_cuts(), (0, 0)]

    def forward(self, i: int, j: int, rows: int = ROWS) -> float:
        return float(np.mean([t.forward(rows)[j] - t.forward(rows)[i] for t in self.tables]))

    def backward(self, i: int, j: int, rows: int = ROWS) -> float:
        return float(np.mean([t.backward(rows)[j] - t.backward(rows)[i] for t in self.tables]))

    def reduce(self, i: int, j: int, members: int) -> float:
        size = sum(b.trainable_bytes for b in self.facts.blocks[i:j])
        return 2 * (members - 1) / members * size / self.bandwidth


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize(
    ("blocks", "devices", "rows", "micro_batches", "coupled", "exclusive"),
    [
        (6, 4, 8, 6, (), ()),
        (6, 4, 8, 6, (2, 3), ()),
        (5, 4, 8, 6, (), (1,)),
        (3, 7, 8, 4, (), ()),  # more devices than blocks
        (4, 6, 2, 2, (0,), ()),  # more devices than rows or turns
        (1, 3, 4, 1, (), ()),
    ],
)
def test_plans_of_every_planner_can_be_run(
    name: str, blocks: int, devices: int, rows: int, micro_batches: int, coupled: tuple[int, ...], exclusive: tuple[int]
) -> None:
    for seed in range(4):
        facts = a_model(seed, blocks, coupled=coupled, exclusive=exclusive, weight=2e4)
        speeds = np.random.default_rng(seed).choice([0.25, 0.5, 1.0], devices)
        profile = a_profile(seed, facts, [float(s) for s in speeds], spread=0.4)
        if exclusive and name in ("data-parallel", "eddl"):
            with pytest.raises(PlanError, match="cannot be shared"):
                PLANNERS[name](facts, profile, rows, micro_batches)
            continue
        plan = PLANNERS[name](facts, profile, rows, micro_batches)
        validate(plan, facts, without_limits(profile))
        assert simulate(plan, facts, profile).round_s > 0


def test_a_single_device_is_the_fastest_that_has_the_memory() -> None:
    facts = a_model(0, 4)
    speeds, plenty = [0.5, 2.0, 1.0], 10**9
    single = PLANNERS["single"]
    assert single(facts, a_profile(0, facts, speeds), ROWS, MICRO_BATCHES).devices == ("d1",)
    small = a_profile(0, facts, speeds, memory=[plenty, 1000, plenty])
    assert single(facts, small, ROWS, MICRO_BATCHES).devices == ("d2",)
    assert single(facts, a_profile(0, facts, speeds, memory=[1000] * 3), ROWS, MICRO_BATCHES).devices == ("d1",)


def test_data_parallel_gives_equal_turns_and_eddl_rows_by_speed() -> None:
    facts = a_model(0, 4)
    profile = a_profile(0, facts, [4.0, 2.0, 1.0, 1.0])
    equal = PLANNERS["data-parallel"](facts, profile, ROWS, MICRO_BATCHES)
    assert [m.share for m in equal.stages[0].group] == [2, 2, 1, 1]
    by_speed = PLANNERS["eddl"](facts, profile, 32, MICRO_BATCHES)
    assert [m.share for m in by_speed.stages[0].group] == [16, 8, 4, 4]
    assert by_speed.stages[0].sharing == "samples"


def test_the_slowest_stage_of_an_even_pipeline_is_as_fast_as_can_be() -> None:
    for seed in range(6):
        facts = a_model(seed, 7)
        profile = a_profile(seed, facts, [1.0, 0.5, 2.0], spread=0.4)
        seen = Mean(facts, profile)

        def slowest(runs: Runs, seen: Mean = seen) -> float:
            return max(seen.forward(i, j) + seen.backward(i, j) for i, j, _ in runs)

        plan = PLANNERS["1f1b"](facts, profile, ROWS, MICRO_BATCHES)
        best = min(slowest(runs) for runs in all_runs(7, 3) if len(runs) == 3)
        assert slowest(runs_of(plan)) == pytest.approx(best)
        first = PLANNERS["gpipe"](facts, profile, ROWS, MICRO_BATCHES)
        assert runs_of(first) == runs_of(plan)
        assert [s.depth for s in first.stages] == [MICRO_BATCHES] * 3


@pytest.mark.parametrize("weight", [2e6, 2e4])
def test_pipedream_reaches_the_optimum_of_its_objective(weight: float) -> None:
    shared = 0
    for seed in range(12):
        facts = a_model(seed, 6, weight=weight)
        profile = a_profile(seed, facts, [1.0, 0.5, 0.25, 1.0], spread=0.5)
        seen = Mean(facts, profile)

        def slowest(runs: Runs, seen: Mean = seen) -> float:
            worst = 0.0
            for i, j, r in runs:
                step = (seen.forward(i, j) + seen.backward(i, j)) / r
                link = sum(seen.cuts[i]) * ROWS / seen.bandwidth if i else 0.0
                worst = max(worst, step, link, seen.reduce(i, j, r) / MICRO_BATCHES)
            return worst

        found = runs_of(PLANNERS["pipedream"](facts, profile, ROWS, MICRO_BATCHES))
        shared += any(r > 1 for _, _, r in found)
        assert slowest(found) == pytest.approx(min(slowest(runs) for runs in all_runs(6, 4)))
    assert shared or weight > 1e6


def dapple_steps(seen: Mean, runs: Runs) -> list[dapple.DappleStep]:
    steps = []
    for i, j, r in runs:
        if i:
            out, back = seen.cuts[i]
            steps.append(dapple.DappleStep(ROWS * out / seen.bandwidth, ROWS * back / seen.bandwidth, 0.0))
        rows = -(-ROWS // r)
        steps.append(dapple.DappleStep(seen.forward(i, j, rows), seen.backward(i, j, rows), seen.reduce(i, j, r)))
    return steps


@pytest.mark.parametrize("weight", [2e6, 2e4])
def test_dapple_comes_to_the_best_of_its_latencies(weight: float) -> None:
    """Its recurrence keeps one tail for each number of devices, so it is not always the best; nearly always it is."""
    ratios = []
    for seed in range(20):
        facts = a_model(seed, 6, weight=weight)
        profile = a_profile(seed, facts, [1.0, 0.5, 0.25, 1.0], spread=0.5)
        seen = Mean(facts, profile)
        found = runs_of(PLANNERS["dapple"](facts, profile, ROWS, MICRO_BATCHES))
        seconds = dapple.latency_s(dapple_steps(seen, found), MICRO_BATCHES)
        runs, said = dapple.best_runs(Uniform(facts, profile, ROWS, MICRO_BATCHES))
        assert runs == list(found)
        assert said == pytest.approx(seconds)
        possible = [
            dapple.latency_s(dapple_steps(seen, runs), MICRO_BATCHES)
            for runs in all_runs(6, 4)
            if all(2 * r <= ROWS for _, _, r in runs)
        ]
        ratios.append(seconds / min(possible))
    assert min(ratios) == pytest.approx(1.0)
    assert np.median(ratios) == pytest.approx(1.0)
    assert np.mean(ratios) < 1.02


@pytest.mark.parametrize("name", ["ftpipehd", "hetpipe"])
def test_planners_of_chains_reach_the_optimum_of_their_objective(name: str) -> None:
    for seed in range(10):
        facts = a_model(seed, 7, weight=2e5)
        profile = a_profile(seed, facts, [1.0, 0.25, 0.5, 1.0], spread=0.4)
        tables, cuts = Tables(profile), [*Edges(facts).at_cuts(), (0, 0)]
        mean = Mean(facts, profile)
        plan = PLANNERS[name](facts, profile, ROWS, MICRO_BATCHES)
        slowest = ftpipehd_objective(tables, cuts) if name == "ftpipehd" else hetpipe_objective(tables, mean)
        possible = [(0, *inner, 7) for n in range(4) for inner in itertools.combinations(range(1, 7), n)]
        best = min(slowest(borders) for borders in possible)
        assert slowest((0, *(s.blocks[1] for s in plan.stages))) == pytest.approx(best)


def ftpipehd_objective(tables: Tables, cuts: list[tuple[int, int]]) -> Callable[[tuple[int, ...]], float]:
    names = list(tables.devices)
    whole = [tables.devices[n].step_s((0, 7), ROWS) for n in names]

    def slowest(borders: tuple[int, ...]) -> float:
        if len(borders) != len(names) + 1:
            return float("inf")  # it uses every device
        worst = 0.0
        for p, (i, j) in enumerate(itertools.pairwise(borders)):
            worst = max(worst, tables.devices[names[0]].step_s((i, j), ROWS) * whole[p] / whole[0])
            if p:
                worst = max(worst, 2 * tables.transfer_s(names[p - 1], names[p], ROWS * cuts[i][0]))
        return worst

    return slowest


def hetpipe_objective(tables: Tables, mean: Mean) -> Callable[[tuple[int, ...]], float]:
    by_speed = sorted(tables.devices.values(), key=lambda t: t.step_s((0, 7), ROWS))

    def slowest(borders: tuple[int, ...]) -> float:
        stages = len(borders) - 1
        options = [v for v in range(1, 5) if min(4 // v, 7) == stages]
        return min((workers_s(v, borders) for v in options), default=float("inf"))

    def workers_s(workers: int, borders: tuple[int, ...]) -> float:
        worst = 0.0
        for p, (i, j) in enumerate(itertools.pairwise(borders)):
            group = by_speed[p * workers : (p + 1) * workers]
            step = float(np.mean([t.step_s((i, j), ROWS) for t in group])) / workers
            link = ROWS * sum(mean.cuts[i]) / mean.bandwidth / workers if p else 0.0
            worst = max(worst, step + mean.reduce(i, j, workers) / MICRO_BATCHES, link)
        return worst

    return slowest


def asteroid_steps(facts: ModelFacts, profile: Profile, plan: Plan) -> list[tuple[float, float, float]]:
    """Forward, backward and all-reduce of every step of a plan shared by samples (Eq. 5 and 8)."""
    tables, cuts, steps = Tables(profile), [*Edges(facts).at_cuts(), (0, 0)], []
    for p, stage in enumerate(plan.stages):
        names = [m.device for m in stage.group]
        if p:
            before = [m.device for m in plan.stages[p - 1].group]
            worst = max(tables.transfer_s(a, b, 1.0) for x in before for y in names for a, b in ((x, y), (y, x)))
            out, back = cuts[stage.blocks[0]]
            steps.append((ROWS * out * worst, ROWS * back * worst, 0.0))
        rows = [m.share if len(names) > 1 else ROWS for m in stage.group]
        i, j = stage.blocks
        f = [tables.devices[n].forward(r) for n, r in zip(names, rows, strict=True)]
        b = [tables.devices[n].backward(r) for n, r in zip(names, rows, strict=True)]
        size = sum(x.trainable_bytes for x in facts.blocks[i:j])
        slow = max((tables.transfer_s(x, y, 1.0) for x in names for y in names if x != y), default=0.0)
        reduce = 2 * (len(names) - 1) / len(names) * size * slow
        steps.append((max(x[j] - x[i] for x in f), max(x[j] - x[i] for x in b), reduce))
    return steps


@pytest.mark.parametrize(("weight", "memory"), [(2e6, 0), (2e4, 0), (2e5, 3_000_000)])
def test_asteroid_comes_to_the_best_of_its_latencies_for_its_order_of_devices(weight: float, memory: int) -> None:
    """Like DAPPLE's, its recurrence keeps one tail for each state, and is the best nearly always."""
    ratios = []
    for seed in range(10):
        facts = a_model(seed, 6, weight=weight)
        limits = [memory, 2 * memory, 4 * memory, memory]
        profile = a_profile(seed, facts, [1.0, 0.5, 0.25, 1.0], spread=0.5, memory=limits)
        ground = Ground(facts, profile, ROWS, MICRO_BATCHES, range(7))
        search = asteroid.AsteroidSearch(ground)
        spans = {span: n for n, span in enumerate(ground.spans)}
        plan = PLANNERS["asteroid"](facts, profile, ROWS, MICRO_BATCHES)

        def seconds(
            runs: Runs, search: asteroid.AsteroidSearch = search, spans: dict = spans, facts=facts, profile=profile
        ):
            stages, a = [], 0
            for p, (i, j, r) in enumerate(runs):
                depth = 2 * (len(runs) - p) - 1
                heads, span = search.heads(r, depth), spans[i, j]
                if not np.isfinite(heads.forward[a, span]):
                    return np.inf
                names = [d.name for d in search.g.devices[a : a + r]]
                shares = [int(s) for s in heads.shares[a, span]]
                stages.append(stage_by((i, j), names, shares, "samples", depth, MICRO_BATCHES))
                a += r
            made = Plan(micro_batch_size=ROWS, micro_batches=MICRO_BATCHES, stages=tuple(stages))
            return asteroid.latency_s(asteroid_steps(facts, profile, made), MICRO_BATCHES)

        assert [s.depth for s in plan.stages] == [2 * n - 1 for n in range(len(plan.stages), 0, -1)]
        best = min(seconds(runs) for runs in all_runs(6, 4))
        found = asteroid.latency_s(asteroid_steps(facts, profile, plan), MICRO_BATCHES)
        assert found == pytest.approx(seconds(runs_of(plan)))
        stages, said = search.best()
        assert stages == plan.stages
        assert said == pytest.approx(found)
        ratios.append(found / best)
    assert min(ratios) == pytest.approx(1.0)
    assert np.mean(ratios) < 1.01


def test_asteroid_sorts_devices_by_memory_and_honours_it() -> None:
    facts = a_model(3, 6, weight=1e6)
    memory = [6_000_000, 30_000_000, 12_000_000, 9_000_000]
    profile = a_profile(3, facts, [1.0] * 4, memory=memory)
    plan = PLANNERS["asteroid"](facts, profile, ROWS, MICRO_BATCHES)
    assert plan.devices == tuple(d for d in ("d1", "d2", "d3", "d0") if d in plan.devices)
    validate(plan, facts, Fleet(devices=tuple(d.device for d in profile.devices)))
    with pytest.raises(PlanError, match="nothing fits"):
        PLANNERS["asteroid"](facts, a_profile(3, facts, [1.0] * 4, memory=[500_000] * 4), ROWS, MICRO_BATCHES)


def test_plans_of_asteroid_fit_as_the_memory_model_has_it() -> None:
    tight = 0
    for seed in range(40):
        facts = a_model(seed, 6, weight=2e5, coupled=(2,) if seed % 3 == 0 else ())
        memory = [int(m) for m in np.random.default_rng(seed).integers(4_000_000, 9_000_000, 4)]
        profile = a_profile(seed, facts, [1.0, 0.5, 1.0, 0.25], memory=memory)
        try:
            plan = PLANNERS["asteroid"](facts, profile, ROWS, MICRO_BATCHES)
        except PlanError:
            continue
        uses = peak_bytes(plan, facts, tables=Tables(profile))
        assert all(uses[f"d{i}"].total <= memory[i] for i in range(4) if f"d{i}" in uses)
        tight += max(uses[f"d{i}"].total / memory[i] for i in range(4) if f"d{i}" in uses) > 0.85
    assert tight > 5


def test_shares_of_algorithm_1_add_up_keep_caps_and_cannot_be_improved_by_one_move() -> None:
    rng = np.random.default_rng(0)
    groups, members, total = 200, 3, 12
    fixed, slope = rng.uniform(0, 2, (groups, members, 1)), rng.uniform(0.1, 2, (groups, members, 1))
    seconds = fixed + slope * np.arange(total + 1)
    caps = rng.integers(2, total + 1, (groups, members))
    shares = allocate(seconds, caps, total, 2)
    possible = caps.sum(axis=1) >= total
    assert possible.any()
    assert not possible.all()
    assert (shares[~possible] == 0).all()
    assert (shares[possible].sum(axis=1) == total).all()
    assert (shares[possible] <= caps[possible]).all()
    assert (shares[possible] >= 2).all()
    for g in np.flatnonzero(possible):
        times = [seconds[g, d, shares[g, d]] for d in range(members)]
        slowest = int(np.argmax(times))
        better = [
            d
            for d in range(members)
            if d != slowest and shares[g, d] < caps[g, d] and seconds[g, d, shares[g, d] + 1] < times[slowest] - 1e-12
        ]
        assert not better or shares[g, slowest] == 2


def test_shares_in_proportion_keep_the_least_and_add_up() -> None:
    assert proportional_shares([4, 2, 1, 1], 16, 2) == (8, 4, 2, 2)
    assert proportional_shares([100, 1, 1], 16, 2) == (12, 2, 2)
    assert proportional_shares([1, 1, 1], 8, 2) == (3, 3, 2)
    with pytest.raises(ValueError, match="cannot give 3 members 2 each"):
        proportional_shares([1, 1, 1], 5, 2)


def test_every_member_of_a_group_by_turns_has_a_micro_batch_under_way() -> None:
    assert busy_depths([1, 1, 1], 8) == (3, 2, 1)
    assert busy_depths([1, 4], 8) == (5, 4)
    assert busy_depths([1, 4], 3) == (3, 3)
    assert busy_depths([1, 1, 1], 1) == (3, 2, 1)


@pytest.mark.full
def test_a_hundred_devices_and_sixty_four_blocks_take_seconds() -> None:
    facts = a_model(0, 64)
    profile = a_profile(0, facts, [0.25 + i % 4 for i in range(100)], spread=0.3)
    for planner in PLANNERS.values():
        validate(planner(facts, profile, ROWS, 16), facts, without_limits(profile))

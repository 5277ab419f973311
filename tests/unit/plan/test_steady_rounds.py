"""Plans whose rounds overlap: a round takes as long as the busiest device or line, by both halves of the cost model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.recurrence import Pipeline, StationWork, Wire
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.steady_rounds import steady_s
from potluck.plan.events.event_simulation import simulate
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.window import window
from potluck.plan.search.plan_search import find_plan
from potluck.types import ModelFacts, Plan, Profile
from tests.unit.builders import chain
from tests.unit.plan.instances import a_model, a_profile

SPEEDS = [1.0, 0.5, 0.5, 0.25]
ROWS, COUNT = 8, 8


def instance(seed: int, bandwidth: float) -> tuple[ModelFacts, Profile]:
    facts = a_model(seed, 12)
    return facts, a_profile(seed, facts, SPEEDS, bandwidth=bandwidth)


def steady(plan: Plan) -> Plan:
    return replace(plan, schedule="steady", stages=tuple(replace(s, late_weights=0) for s in plan.stages))


@pytest.mark.parametrize("seed", range(3))
def test_the_same_plan_is_never_slower_and_waits_for_nothing_but_work(seed: int) -> None:
    facts, profile = instance(seed, 3e6)
    plan = find_plan(facts, profile, [(ROWS, COUNT)], seconds=0.5).plan
    flushed, overlapping = (simulate(p, facts, profile) for p in (plan, steady(plan)))
    assert overlapping.round_s <= flushed.round_s * (1 + 1e-9)
    assert max(overlapping.busy_s.values()) == pytest.approx(overlapping.round_s, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_on_slow_lines_the_best_steady_plan_is_much_faster(seed: int) -> None:
    facts, profile = instance(seed, 3e6)
    now = find_plan(facts, profile, [(ROWS, COUNT)], seconds=1.0)
    late = find_plan(facts, profile, [(ROWS, COUNT)], seconds=1.0, schedule="steady")
    assert late.plan.schedule == "steady"
    assert now.round_s > 1.15 * late.round_s
    assert late.bound_s <= late.round_s


@pytest.mark.parametrize("seed", range(4))
def test_the_quick_half_of_the_cost_model_agrees_with_the_exact_one(seed: int) -> None:
    facts, profile = instance(seed, 3e7)
    cost = CostModel(facts, profile, ROWS, COUNT, schedule="steady")
    found = find_plan(facts, profile, [(ROWS, COUNT)], seconds=0.7, schedule="steady")
    quick_s = float(cost.seconds([cost.of_plan(found.plan)])[0])
    assert quick_s == pytest.approx(simulate(found.plan, facts, profile).round_s, rel=0.12)


def test_two_rounds_may_be_open_and_no_third() -> None:
    """A long commit is hidden, as far as one round's work lasts."""
    facts, profile = instance(0, 3e7)
    plan = steady(find_plan(facts, profile, [(ROWS, COUNT)], seconds=0.3).plan)
    usual_s = simulate(plan, facts, profile).round_s
    late = replace(profile, commit_s=0.3 * usual_s)
    assert simulate(plan, facts, late).round_s == pytest.approx(usual_s, rel=0.02)
    assert simulate(replace(plan, schedule="1f1b"), facts, late).round_s > 1.2 * usual_s
    assert simulate(plan, facts, replace(profile, commit_s=4 * usual_s)).round_s > 2 * usual_s


def by_itself(latency_s: float, depth: int, alone_s: float = 0.0) -> float:
    """Two stages that take a second each way for each of four micro-batches."""
    station = SimpleNamespace(busy_s=2.0, passage_s=2.0, reduce_s=0.0, update_s=0.5)
    every = np.ones((4, 1))
    work, wire = StationWork(every, every, None), Wire(0.25 * every, latency_s * every)
    pipeline = Pipeline(
        stages=[work, work], out={(0, 1): wire}, back={(0, 1): wire}, begin_s=[np.zeros(1)] * 2, depths=(depth, 1),
        micro_batches=4, schedule=schedule_named("steady"),
    )  # fmt: skip
    line: Any = (station, station)
    return float(steady_s([line], pipeline, np.array([alone_s]), 2)[0])


def test_too_little_under_way_makes_everybody_wait() -> None:
    assert by_itself(0.0, depth=3) == pytest.approx(8.5)  # the busiest device, and its update
    assert by_itself(5.0, depth=3) == pytest.approx(4 * 14.5 / 3)  # a trip of 14.5 s, three at a time
    assert by_itself(5.0, depth=8) == pytest.approx(8.5)
    assert by_itself(0.0, depth=3, alone_s=40.0) == pytest.approx(20.0)


def test_a_steady_plan_has_two_open_rounds_and_two_versions() -> None:
    plan = replace(chain(2), schedule="steady")
    assert window(plan) == 2
    assert window(chain(2)) == 1
    assert schedule_named("steady").versions(3) == 2
    assert not schedule_named("steady").flushes


def test_two_open_rounds_hold_weights_gradients_and_a_larger_copy() -> None:
    facts = a_model(0, 8)
    plan = PLANNERS["1f1b"](facts, a_profile(0, facts, [1.0, 1.0]), ROWS, 4)
    now, late = (peak_bytes(replace(plan, schedule=s), facts, snapshot=True) for s in ("1f1b", "steady"))
    for stage in plan.stages:
        device = stage.group[0].device
        trainable = sum(b.trainable_bytes for b in facts.blocks[slice(*stage.blocks)])
        assert trainable > 0
        assert late[device].weights - now[device].weights == trainable
        assert late[device].gradients - now[device].gradients == trainable
    whole = sum(b.trainable_bytes for b in facts.blocks)
    assert {d: late[d].snapshots - now[d].snapshots for d in late} == dict.fromkeys(late, whole)


def test_the_search_counts_no_less_for_a_second_version_as_the_plan_says() -> None:
    facts = a_model(0, 8)
    profile = a_profile(0, facts, [1.0, 1.0])
    needs, totals = list[list[int]](), list[list[int]]()
    for schedule in ("1f1b", "steady"):
        cost = CostModel(facts, profile, ROWS, 4, schedule=schedule)
        plan = replace(PLANNERS["1f1b"](facts, profile, ROWS, 4), schedule=schedule)
        line = cost.of_plan(plan)
        needs.append([cost.stations.need_bytes(s, 0, s.stage.depth or 0, 2) for s in line])
        uses = peak_bytes(plan, facts, tables=cost.tables)
        totals.append([uses[s.stage.group[0].device].total for s in line])
    for (now, late), (now_total, late_total) in zip(zip(*needs, strict=True), zip(*totals, strict=True), strict=True):
        # The plan knows besides that a checkpoint on its way needs no room that gradients leave free.
        assert late - now >= late_total - now_total > 0

"""What every plan that is found promises, on random models and fleets."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.exhaustive import best_of_all
from potluck.errors import PlanError
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import Simulated, simulate
from potluck.plan.search.bound import lower_bound_s
from potluck.plan.search.plan_search import Found, find_plan
from potluck.plan.search.ranking import Jury, kind_of
from potluck.plan.validate import validate
from potluck.types import BlockProfile, Fleet, Member, ModelFacts, Plan, Profile, Stage
from tests.models.planner_instances import instance
from tests.unit.plan.instances import a_model, a_profile
from tests.unit.plan.test_late_weights_in_plans import able, all_late

SIZES = [(8, 6)]
seeds = st.integers(0, 10_000)
few = settings(max_examples=12, deadline=None, derandomize=True)


def find(facts: ModelFacts, profile: Profile) -> Found | None:
    try:
        return find_plan(facts, profile, SIZES, seconds=20.0)
    except PlanError:
        return None


def scaled(profile: Profile, device: int, factor: float) -> Profile:
    """One device slower by a factor."""
    old = profile.devices[device]
    blocks = tuple(
        replace(
            block,
            timings=tuple(
                replace(t, forward_s=t.forward_s * factor, backward_s=t.backward_s * factor) for t in block.timings
            ),
        )
        for block in old.blocks
    )
    devices = [*profile.devices]
    devices[device] = replace(old, blocks=blocks)
    return replace(profile, devices=tuple(devices))


def wider(profile: Profile, factor: float) -> Profile:
    """Every link carries more by a factor."""
    links = tuple(
        replace(link, bandwidth_bytes_s=None if link.bandwidth_bytes_s is None else link.bandwidth_bytes_s * factor)
        for link in profile.links
    )
    return replace(profile, links=links)


@few
@given(seeds, st.integers(1, 4), st.integers(1, 6))
def test_every_plan_found_is_valid_and_honours_memory(seed: int, devices: int, blocks: int) -> None:
    facts, profile = instance(seed, devices, blocks)
    found = find(facts, profile)
    if found is not None:
        validate(found.plan, facts, Fleet(devices=tuple(replace(d.device, memory_bytes=0) for d in profile.devices)))
        limits = {d.device.name: d.device.memory_bytes for d in profile.devices}
        for name, use in peak_bytes(found.plan, facts, tables=Tables(profile)).items():
            assert use.total <= limits[name]


@few
@given(seeds, st.integers(1, 4), st.integers(2, 6))
def test_nothing_is_faster_than_the_bound(seed: int, devices: int, blocks: int) -> None:
    facts, profile = instance(seed, devices, blocks, memory=False)
    cost = CostModel(facts, profile, *SIZES[0])
    bound = lower_bound_s(cost)
    best, line = best_of_all(cost)
    assert line is not None
    assert bound <= best * (1 + 1e-9)
    assert bound <= simulate(cost.plan(line), facts, profile).round_s * (1 + 1e-9)


@few
@given(seeds, st.integers(2, 3), st.integers(2, 5), st.floats(0.3, 1.0), st.floats(0.0, 0.7), st.integers(1, 8))
def test_nothing_that_puts_weight_gradients_off_is_faster_than_the_bound(
    seed: int, devices: int, blocks: int, back: float, weights: float, late: int
) -> None:
    facts, profile = instance(seed, devices, blocks, memory=False)
    profile = able(profile, back, weights)
    cost = CostModel(facts, profile, *SIZES[0])
    bound = lower_bound_s(cost)
    _, line = best_of_all(cost)
    assert line is not None
    plan = all_late(cost.plan(line), min(late, cost.micro_batches))
    assert bound <= simulate(plan, facts, profile).round_s * (1 + 1e-9)


def test_the_bound_is_over_all_micro_batch_sizes_also_those_not_searched() -> None:
    facts, profile = instance(48, 3, 5, memory=False)
    sizes = [(1, 64), (2, 32), (4, 16), (8, 8), (16, 4), (32, 2), (64, 1)]
    bounds = [lower_bound_s(CostModel(facts, profile, *size)) for size in sizes]
    assert find_plan(facts, profile, sizes, seconds=2.0).bound_s <= min(bounds) * (1 + 1e-9)


def plans(profile: Profile, facts: ModelFacts) -> list[Plan]:
    """A handful of different plans."""
    found = find(facts, profile)
    return [] if found is None else [p for p in (found.plan, found.runner_up) if p is not None]


@few
@given(seeds, st.integers(2, 4), st.integers(3, 6), st.floats(1.1, 4.0))
def test_more_bandwidth_or_a_faster_device_never_slows_a_plan_down(
    seed: int, devices: int, blocks: int, factor: float
) -> None:
    facts, profile = instance(seed, devices, blocks)
    for plan in plans(profile, facts):
        # A member of a group that is faster may find gradients to add up where it would else have gone on.
        groups = any(len(stage.group) > 1 for stage in plan.stages)
        most = simulate(plan, facts, profile).round_s * (1.03 if groups else 1 + 1e-9)
        assert simulate(plan, facts, wider(profile, factor)).round_s <= most
        for device in range(devices):
            assert simulate(plan, facts, scaled(profile, device, 1 / factor)).round_s <= most


@settings(max_examples=5, deadline=None, derandomize=True)
@given(seeds, st.integers(2, 4), st.integers(3, 5), st.floats(1.1, 4.0))
def test_more_bandwidth_or_a_faster_device_slows_the_best_plan_by_five_percent_at_most(
    seed: int, devices: int, blocks: int, factor: float
) -> None:
    facts, profile = instance(seed, devices, blocks)
    before = find(facts, profile)
    if before is None:
        return
    for better in (wider(profile, factor), scaled(profile, 0, 1 / factor)):
        after = find(facts, better)
        assert after is not None
        assert after.round_s <= before.round_s * 1.05


@few
@given(seeds, st.integers(1, 3), st.integers(2, 5))
def test_few_devices_get_nearly_the_best_plan_of_all(seed: int, devices: int, blocks: int) -> None:
    facts, profile = instance(seed, devices, blocks)
    cost = CostModel(facts, profile, *SIZES[0])
    best, _ = best_of_all(cost)
    found = find(facts, profile)
    if best < float("inf"):
        assert found is not None
        assert found.cost_s <= best * 1.05


def test_a_device_that_only_slows_the_rest_is_left_out_and_named() -> None:
    facts, profile = instance(3, 3, 5, memory=False)
    found = find(facts, scaled(profile, 1, 200.0))
    assert found is not None
    assert "d1" not in found.plan.devices
    assert [name for name, _ in found.left_out] == ["d1"]


def test_short_memory_is_met_by_recomputing() -> None:
    facts, profile = instance(5, 2, 4, memory=False)
    profile = keeping_more(profile, 8)
    roomy = find(facts, profile)
    assert roomy is not None
    most = max(use.total for use in peak_bytes(roomy.plan, facts, tables=Tables(profile)).values())
    tight = [find(facts, limited(profile, most * percent // 100)) for percent in range(96, 20, -4)]
    fitting = [found for found in tight if found is not None]
    assert any(stage.recompute for found in fitting for stage in found.plan.stages)
    assert None in tight, "the limits do not go down to where nothing fits"


def keeping_more(profile: Profile, factor: int) -> Profile:
    """Every block keeps more for its backward pass, by a factor."""

    def more(block: BlockProfile) -> BlockProfile:
        return replace(block, timings=tuple(replace(t, kept_bytes=t.kept_bytes * factor) for t in block.timings))

    devices = (replace(d, blocks=tuple(more(b) for b in d.blocks)) for d in profile.devices)
    return replace(profile, devices=tuple(devices))


def limited(profile: Profile, memory_bytes: int) -> Profile:
    """Every device with so much memory."""
    devices = (replace(d, device=replace(d.device, memory_bytes=memory_bytes)) for d in profile.devices)
    return replace(profile, devices=tuple(devices))


def test_when_nothing_fits_it_says_so() -> None:
    facts, profile = instance(5, 2, 4, memory=False)
    with pytest.raises(PlanError, match="fit"):
        find_plan(facts, limited(profile, 1000), SIZES)


def test_the_search_keeps_its_time_and_depths_fall_along_the_pipeline() -> None:
    facts, profile = instance(1, 8, 20)
    found = find_plan(facts, profile, [(8, 16)], seconds=1.0)
    assert found.seconds < 10.0  # not a timing: only that it ends
    depths = [found.plan.depth(p) for p in range(len(found.plan.stages))]
    assert all(a >= b for a, b in pairwise(depths))


@pytest.mark.parametrize(("devices", "blocks"), [(4, 40), (60, 20)])
def test_little_time_is_kept_to_and_a_plan_comes_out(
    monkeypatch: pytest.MonkeyPatch, devices: int, blocks: int
) -> None:
    facts, profile = instance(1, devices, blocks, memory=False)
    monkeypatch.setattr(time, "monotonic", time.process_time)  # others may keep this machine busy
    began = time.process_time()
    found = find_plan(facts, profile, [(8, 16)], seconds=0.01)
    assert time.process_time() - began < 1.0
    validate(found.plan, facts, Fleet(devices=tuple(d.device for d in profile.devices)))


def a_jury(round_s: dict[Plan, float], profile: Profile, facts: ModelFacts, monkeypatch: pytest.MonkeyPatch) -> Jury:
    """One that takes these times for simulated."""
    monkeypatch.setattr("potluck.plan.search.ranking.simulate", lambda plan, *_, **__: Simulated(round_s[plan], {}))
    jury = Jury(facts, profile, Tables(profile), float("inf"))
    jury.hear((1.0, plan) for plan in round_s)
    return jury


def pipeline(*devices: str) -> Plan:
    stages = [Stage(blocks=(i, i + 1), group=(Member(device=d, share=4),)) for i, d in enumerate(devices)]
    return Plan(micro_batch_size=4, micro_batches=4, stages=tuple(stages))


def test_a_device_that_gains_less_than_one_percent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, profile = instance(1, 4, 4, memory=False)
    times = {pipeline("d0", "d1", "d2"): 1.0, pipeline("d0", "d1"): 1.009, pipeline("d0", "d3"): 1.05}
    jury = a_jury(times, profile, facts, monkeypatch)
    assert jury.best().plan.devices == ("d0", "d1", "d2")
    assert jury.chosen().plan.devices == ("d0", "d1")
    assert jury.left_out(jury.chosen()) == (
        ("d2", "it would gain less than 1%"),
        ("d3", "with it the best plan found takes 4.1% longer"),
    )
    times[pipeline("d0", "d1")] = 1.011
    jury = a_jury(times, profile, facts, monkeypatch)
    assert jury.chosen().plan.devices == ("d0", "d1", "d2")
    assert jury.left_out(jury.chosen()) == (("d3", "with it the best plan found takes 5.0% longer"),)


def test_a_plan_with_fewer_devices_is_not_taken_where_another_planner_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts, profile = instance(1, 4, 4, memory=False)
    times = {pipeline("d0", "d1", "d2"): 1.0, pipeline("d0", "d1"): 1.009, pipeline("d0", "d3", "d2"): 1.005}
    jury = a_jury(times, profile, facts, monkeypatch)
    assert jury.chosen().plan.devices == ("d0", "d1")
    jury.know_rivals([(1.0, pipeline("d0", "d3", "d2"))])
    assert jury.chosen().plan.devices == ("d0", "d1", "d2")


def test_who_is_in_no_plan_that_fits_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, profile = instance(1, 2, 4, memory=False)
    jury = a_jury({pipeline("d0"): 1.0}, profile, facts, monkeypatch)
    assert jury.left_out(jury.chosen()) == (("d1", "no plan with it that fits was found"),)
    assert jury.runner_up(jury.chosen()) is None


def test_the_next_best_plan_is_not_the_same_on_devices_just_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, profile = instance(1, 4, 4, memory=False)
    swapped, slower = pipeline("d1", "d0"), pipeline("d0", "d2")
    jury = a_jury({pipeline("d0", "d1"): 1.0, swapped: 1.001, slower: 1.2}, profile, facts, monkeypatch)
    found = jury.runner_up(jury.chosen())
    assert found is not None
    assert found.plan == slower


def test_plans_with_fewer_devices_are_among_those_judged() -> None:
    facts, profile = instance(3, 3, 5, memory=False)
    found = find(facts, scaled(profile, 1, 30.0))
    assert found is not None
    assert "d1" not in found.plan.devices
    ((_, why),) = found.left_out
    assert why == "it would gain less than 1%" or why.endswith("longer") or why.endswith("no faster")


def test_the_best_of_every_other_kind_is_given_too() -> None:
    facts = a_model(0, 8)
    profile = a_profile(0, facts, [1.0, 0.8, 0.5], bandwidth=1e8)
    found = find_plan(facts, profile, [(8, 4)], seconds=2.0)
    others = found.other_kinds
    assert {kind_of(one.plan) for one in (found, *others)} == {"one group", "shared stages", "single devices"}
    assert len(others) == 2
    assert all(one.round_s >= found.round_s * 0.99 for one in others)

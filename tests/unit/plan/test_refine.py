"""Profiles and shares corrected by what training took."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.metrics.lanes import COMPUTES
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.events.refine import corrected, levelled
from potluck.types import Member, Plan, Profile, Stage
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(1, 6)


def test_what_all_devices_have_in_common_counts_at_once_and_for_everybody() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5, 0.25])
    plan = PLANNERS["1f1b"](FACTS, profile, 8, 6)
    busy = simulate(plan, FACTS, profile).busy_s
    first, second, third = plan.devices
    spent = {
        first: {"forward": busy[first], "backward": busy[first], "reduce": 99.0},  # twice what was thought
        second: {"forward": busy[second] * 2},
    }
    again = simulate(plan, FACTS, corrected(profile, FACTS, [(plan, spent)])).busy_s
    for device in (first, second, third):
        assert again[device] == pytest.approx(2 * busy[device])
    assert "reduce" not in COMPUTES  # waiting for others says nothing of a device


def test_what_sets_a_device_apart_counts_more_the_more_often_it_was_seen() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5])
    plan = PLANNERS["1f1b"](FACTS, profile, 8, 6)
    busy = simulate(plan, FACTS, profile).busy_s
    slow, fast = plan.devices
    spent = {slow: {"forward": busy[slow] * 3}, fast: {"forward": busy[fast] / 3}}
    for times in range(1, 5):
        again = simulate(plan, FACTS, corrected(profile, FACTS, [(plan, spent)] * times)).busy_s
        assert again[slow] / busy[slow] == pytest.approx(3 ** (times / (times + 1)))
        assert again[fast] / busy[fast] == pytest.approx(3 ** (-times / (times + 1)))


def test_devices_that_were_slow_by_turns_are_alike_in_the_end() -> None:
    profile = a_profile(1, FACTS, [1.0, 1.0])
    plan = PLANNERS["1f1b"](FACTS, profile, 8, 6)
    busy = simulate(plan, FACTS, profile).busy_s
    one, other = plan.devices
    first = {one: {"forward": busy[one] * 1.3}, other: {"forward": busy[other]}}
    then = {one: {"forward": busy[one]}, other: {"forward": busy[other] * 1.3}}
    again = simulate(plan, FACTS, corrected(profile, FACTS, [(plan, first), (plan, then)])).busy_s
    assert again[one] / busy[one] == pytest.approx(again[other] / busy[other])


def test_one_wild_round_does_not_make_a_device_useless() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5])
    plan = PLANNERS["1f1b"](FACTS, profile, 8, 6)
    busy = simulate(plan, FACTS, profile).busy_s
    wild = {plan.devices[0]: {"forward": 1000 * busy[plan.devices[0]]}}
    again = simulate(plan, FACTS, corrected(profile, FACTS, [(plan, wild)])).busy_s
    assert again[plan.devices[0]] == pytest.approx(4 * busy[plan.devices[0]])
    assert corrected(profile, FACTS, []) is profile


def _shared(profile: Profile, shares: tuple[int, int, int]) -> Plan:
    group = tuple(Member(device=d.device.name, share=s) for d, s in zip(profile.devices, shares, strict=True))
    stage = Stage(blocks=(0, len(FACTS.blocks)), group=group, sharing="samples")
    return Plan(micro_batch_size=sum(shares), micro_batches=2, stages=(stage,))


def test_shares_become_what_members_manage_in_the_same_time() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5, 0.25])
    plan = _shared(profile, (4, 4, 4))
    first, second, third = plan.devices
    spent = {
        first: {"forward": 1.0, "backward": 1.0, "reduce": 9.0},
        second: {"backward": 4.0},
        third: {"weights": 4.0},
    }
    assert [m.share for m in levelled(plan, FACTS, Tables(profile), spent).stages[0].group] == [6, 3, 3]
    assert levelled(plan, FACTS, Tables(profile), {first: {"forward": 1.0}}) == plan  # nothing is known of the others


def test_shares_stay_where_new_ones_would_not_fit() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5, 0.25])
    plan = _shared(profile, (4, 4, 4))
    uses = peak_bytes(plan, FACTS, tables=Tables(profile))
    tight = tuple(replace(d, device=replace(d.device, memory_bytes=uses[d.device.name].total)) for d in profile.devices)
    spent = {d: {"forward": float(n)} for n, d in enumerate(plan.devices, 1)}
    assert levelled(plan, FACTS, Tables(replace(profile, devices=tight)), spent) == plan

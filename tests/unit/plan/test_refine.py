"""Profiles and shares corrected by what training took."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.plan.baselines import PLANNERS
from potluck.plan.events import COMPUTES, simulate
from potluck.plan.memory import peak_bytes
from potluck.plan.refine import levelled, refined
from potluck.plan.tables import Tables
from potluck.types import Member, Plan, Profile, Stage
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(1, 6)


def test_devices_become_as_fast_as_they_were_and_others_stay() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5, 0.25])
    plan = PLANNERS["1f1b"](FACTS, profile, 8, 6)
    busy = simulate(plan, FACTS, profile).busy_s
    first, second, *_ = plan.devices
    spent = {
        first: {"forward": busy[first], "backward": busy[first], "reduce": 99.0},  # twice what was thought
        second: {"forward": busy[second] * 0.5},
    }
    again = simulate(plan, FACTS, refined(profile, plan, FACTS, spent)).busy_s
    assert again[first] == pytest.approx(2 * busy[first])
    assert again[second] == pytest.approx(busy[second] / 2)
    assert all(again[d] == pytest.approx(busy[d]) for d in plan.devices if d not in (first, second))
    assert "reduce" not in COMPUTES  # waiting for others says nothing of a device


def test_one_wild_round_does_not_make_a_device_useless() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5])
    plan = PLANNERS["1f1b"](FACTS, profile, 8, 6)
    busy = simulate(plan, FACTS, profile).busy_s
    wild = {plan.devices[0]: {"forward": 1000 * busy[plan.devices[0]]}}
    again = simulate(plan, FACTS, refined(profile, plan, FACTS, wild)).busy_s
    assert again[plan.devices[0]] == pytest.approx(4 * busy[plan.devices[0]])


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

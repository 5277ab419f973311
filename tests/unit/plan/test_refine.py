"""A profile corrected by what training took."""

from __future__ import annotations

import pytest

from potluck.plan.baselines import PLANNERS
from potluck.plan.events import COMPUTES, simulate
from potluck.plan.refine import refined
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

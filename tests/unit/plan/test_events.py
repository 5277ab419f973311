"""The event simulation in detail: what takes how long when."""

from __future__ import annotations

import pytest

from potluck.plan.baselines import PLANNERS
from potluck.plan.events import simulate
from tests.unit.plan.instances import a_model, a_profile
from tests.unit.plan.odd_instances import faster, odd_instance


def test_summing_gradients_is_one_span_from_the_last_backward_to_the_end_of_the_round() -> None:
    facts = a_model(0, 4)
    profile = a_profile(0, facts, [1.0, 1.0], bandwidth=1e6)
    plan = PLANNERS["data-parallel"](facts, profile, 8, 4)
    found = simulate(plan, facts, profile)
    for device in plan.devices:
        for round, end in enumerate(found.ends_s):
            mine = [s for s in found.spans if s.device == device and s.round == round]
            (summing,) = [s for s in mine if s.kind == "reduce"]
            assert summing.start_s == max(s.stop_s for s in mine if s.kind == "backward")
            assert summing.stop_s == pytest.approx(end - profile.commit_s)
            size = sum(b.trainable_bytes for b in facts.blocks)
            assert summing.stop_s - summing.start_s >= size / 1e6 * 0.999  # half there, and half back


def test_who_sums_nothing_has_no_such_span() -> None:
    facts = a_model(0, 4)
    profile = a_profile(0, facts, [1.0, 1.0])
    found = simulate(PLANNERS["1f1b"](facts, profile, 8, 4), facts, profile)
    assert not [s for s in found.spans if s.kind == "reduce"]


@pytest.mark.parametrize("seed", [91, 110])
def test_a_message_that_waits_for_one_end_does_not_hold_up_the_other(seed: int) -> None:
    odd = odd_instance(seed)
    assert odd.profile.medium == "half"
    better = faster(odd.profile, seed % len(odd.profile.devices), 2.0)
    for name in ("1f1b", "data-parallel", "ftpipehd", "pipedream"):
        plan = PLANNERS[name](odd.facts, odd.profile, odd.rows, odd.micro_batches)
        before, after = (simulate(plan, odd.facts, profile).round_s for profile in (odd.profile, better))
        assert after <= before * (1 + 1e-9), name

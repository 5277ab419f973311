"""The event simulation in detail: what takes how long when."""

from __future__ import annotations

import pytest

from potluck.plan.baselines import PLANNERS
from potluck.plan.events.event_simulation import simulate
from tests.unit.plan.instances import a_model, a_profile
from tests.unit.plan.odd_instances import faster, odd_instance


def test_summing_gradients_goes_on_from_the_last_backward_to_the_end_of_the_round() -> None:
    facts = a_model(0, 4)
    profile = a_profile(0, facts, [1.0, 1.0], bandwidth=1e6)
    plan = PLANNERS["data-parallel"](facts, profile, 8, 4)
    found = simulate(plan, facts, profile)
    for round, end in enumerate(found.ends_s):
        ends = []
        for device in plan.devices:
            mine = [s for s in found.spans if s.device == device and s.round == round]
            (summing,) = [s for s in mine if s.kind == "reduce"]
            assert summing.start_s == max(s.stop_s for s in mine if s.kind == "backward")
            ends.append(summing.stop_s)
            back = [s for s in mine if s.kind == "backward"]
            last = min(s.start_s for s in back if s.micro_batch == max(b.micro_batch for b in back))
            size = sum(b.trainable_bytes for b in facts.blocks)
            assert summing.stop_s - last >= size / 1e6 * 0.995  # half there, and half back
        assert max(ends) == pytest.approx(end - profile.commit_s)


def test_gradients_are_summed_while_the_last_backward_goes_on() -> None:
    facts = a_model(0, 6)
    free = a_profile(0, facts, [1.0, 1.0, 1.0], bandwidth=1e15)
    plan = PLANNERS["data-parallel"](facts, free, 12, 3)
    alone = simulate(plan, facts, free).round_s
    size = sum(b.trainable_bytes for b in facts.blocks)
    sending_s = alone / 4  # on each line, there and back
    slow = a_profile(0, facts, [1.0, 1.0, 1.0], bandwidth=4 / 3 * size / sending_s)
    assert alone + 0.1 * sending_s < simulate(plan, facts, slow).round_s < alone + 0.95 * sending_s


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

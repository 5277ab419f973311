"""What must hold for every plan of every planner on problems with skips, frozen fronts, latency and tight memory."""

from __future__ import annotations

import pytest

from potluck.errors import PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.bound import lower_bound_s
from potluck.plan.cost import CostModel
from potluck.plan.events import simulate
from potluck.plan.messages import Messages
from potluck.plan.tables import Tables
from potluck.types import Plan
from tests.unit.plan.odd_instances import Odd, odd_instance

# Frozen fronts (109, 39, 159, 12), a skip (7), parts of a coupled model that may be cut (22), and others.
WITH_BOUNDS = [7, 12, 22, 39, 109, 159, 162, *range(164, 173)]
# Groups whose devices copy what they send (115, 37).
COPYING = [115, 37]
# Samples that take longer to arrive than a round (108, 336).
FAR_AWAY = [108, 336]


def plans(odd: Odd) -> dict[str, Plan]:
    """Of every planner that has one."""
    found = {}
    for name, make in PLANNERS.items():
        try:
            found[name] = make(odd.facts, odd.profile, odd.rows, odd.micro_batches)
        except PlanError:
            continue
    return found


@pytest.mark.parametrize("seed", WITH_BOUNDS)
def test_no_plan_beats_the_bound(seed: int) -> None:
    odd = odd_instance(seed)
    cost = CostModel(odd.facts, odd.profile, odd.rows, odd.micro_batches)
    bound = lower_bound_s(cost)
    for name, plan in plans(odd).items():
        assert bound <= simulate(plan, odd.facts, odd.profile).round_s * (1 + 1e-9), name
        assert bound <= float(cost.seconds([cost.of_plan(plan)])[0]) * (1 + 1e-9), name


@pytest.mark.parametrize("seed", COPYING)
def test_summing_gradients_costs_what_its_messages_cost(seed: int) -> None:
    odd = odd_instance(seed)
    cost = CostModel(odd.facts, odd.profile, odd.rows, odd.micro_batches)
    plan = plans(odd)["data-parallel"]
    (station,) = cost.of_plan(plan)
    messages = Messages(plan, odd.facts, Tables(odd.profile))
    longest = 0.0
    for device in plan.devices:
        seconds = 0.0
        for phase in ("reduce", "sum"):
            out, back = messages.summing(device, phase)
            seconds += messages.handling_s(device, out) + messages.handling_s(device, back)
            seconds += sum(p.transfer_s for p in out) + max(p.latency_s for p in out)
        longest = max(longest, seconds)
    assert station.reduce_s == pytest.approx(longest)


@pytest.mark.parametrize("seed", FAR_AWAY)
def test_samples_that_come_from_far_away_are_in_the_cost_as_in_the_simulation(seed: int) -> None:
    odd = odd_instance(seed)
    cost = CostModel(odd.facts, odd.profile, odd.rows, odd.micro_batches)
    for name, plan in plans(odd).items():
        by_cost = float(cost.seconds([cost.of_plan(plan)])[0])
        assert by_cost == pytest.approx(simulate(plan, odd.facts, odd.profile).round_s, rel=0.1), name


@pytest.mark.parametrize("seed", [1, 5, 11, 45, 86, 105, 108, 140, 336])
def test_a_round_takes_what_many_take_in_the_mean(seed: int) -> None:
    odd = odd_instance(seed)
    for name, plan in plans(odd).items():
        ends = simulate(plan, odd.facts, odd.profile, 13).ends_s
        in_the_mean = (ends[-1] - ends[-7]) / 6
        assert simulate(plan, odd.facts, odd.profile).round_s == pytest.approx(in_the_mean, rel=1e-3), name

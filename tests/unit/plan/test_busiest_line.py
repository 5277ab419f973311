"""For how long a round takes the busiest shared line, against the messages of the round one by one."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.shared_lines import Trunks
from potluck.plan.cost.tables import Tables
from potluck.plan.cost.traffic import Messages
from potluck.types import ModelFacts, Plan, Profile
from tests.unit.plan.instances import a_model
from tests.unit.plan.test_shared_lines import across, one_in_each, two_rooms


def busiest_s(plan: Plan, facts: ModelFacts, profile: Profile) -> float:
    cost = CostModel(facts, profile, plan.micro_batch_size, plan.micro_batches)
    line = cost.of_plan(plan)
    return Trunks(cost.stations).busiest_s(line, *cost.stations.edges.between([s.blocks for s in plan.stages]))


def one_by_one_s(plan: Plan, facts: ModelFacts, profile: Profile) -> float:
    """Every message of a round that goes over a shared line."""
    tables = Tables(profile)
    messages = Messages(plan, facts, tables)
    sent = [message for _, message in messages.feeds()]
    for device in plan.devices:
        for j in range(plan.micro_batches):
            sent += messages.leaving(device, "send_outputs", j)
            sent += messages.leaving(device, "send_gradients", j)
        sent += chain(*(messages.summing(device, phase)[0] for phase in ("reduce", "sum")))
    taken: Counter[str] = Counter()
    for message in sent:
        if line := tables.trunk(message.source, message.target):
            taken[line] += message.transfer_s  # type: ignore[assignment]
    return max(taken.values(), default=0.0)


@pytest.mark.parametrize("medium", ["full", "half"])
@pytest.mark.parametrize("plan", [across(), one_in_each("d0", "d2"), one_in_each("d2", "d1"), one_in_each("d2", "d3")])
def test_the_busiest_line_is_taken_for_all_that_goes_over_it(plan: Plan, medium: str) -> None:
    facts = a_model(1, 6)
    profile = two_rooms(facts, shared=True, medium=medium)  # type: ignore[arg-type]
    assert busiest_s(plan, facts, profile) == pytest.approx(one_by_one_s(plan, facts, profile), rel=1e-4)


def test_one_group_in_two_rooms_sums_over_the_line() -> None:
    facts = a_model(1, 6)
    profile = two_rooms(facts, shared=True)
    cost = CostModel(facts, profile, 8, 4)
    station = cost.stations.best((0, 6), ("d0", "d2"), 1)
    assert station is not None
    plan = cost.plan((station,))
    assert busiest_s(plan, facts, profile) == pytest.approx(one_by_one_s(plan, facts, profile), rel=1e-4)


def test_where_no_line_is_shared_none_is_busy() -> None:
    facts = a_model(1, 6)
    assert busiest_s(across(), facts, two_rooms(facts, shared=False)) == 0.0

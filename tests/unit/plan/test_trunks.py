"""Links that share a line: what the simulation and the cost model make of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from potluck.errors import PotluckError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost import CostModel
from potluck.plan.events import simulate
from potluck.plan.explain import Explainer
from potluck.plan.messages import Messages
from potluck.plan.tables import Tables
from potluck.types import COORDINATOR, LinkProfile, Member, ModelFacts, Plan, Profile, Stage
from tests.unit.plan.instances import a_model, a_profile

FIRST = (COORDINATOR, "d0", "d1")  # the others stand in the second room
SLOW, FAST = 2e5, 1e8


def two_rooms(facts: ModelFacts, *, shared: bool, devices: int = 4, slow: float = SLOW) -> Profile:
    """Devices of two rooms, whose links to each other have one line or a line each."""
    profile = a_profile(0, facts, [1.0] * devices, bandwidth=FAST)

    def link_of(link: LinkProfile) -> LinkProfile:
        if (link.source in FIRST) == (link.target in FIRST):
            return link
        name = "one → two" if link.source in FIRST else "two → one"
        return replace(link, bandwidth_bytes_s=slow, trunk=name if shared else "")

    return replace(profile, links=tuple(map(link_of, profile.links)))


def across(micro_batches: int = 4) -> Plan:
    """Two groups by samples, each in its room: every member sends to the other room."""
    groups = (("d0", "d1"), ("d2", "d3"))
    stages = tuple(
        Stage(blocks=(3 * p, 3 * p + 3), group=tuple(Member(device=d, share=4) for d in group), sharing="samples",
              depth=2 - p)
        for p, group in enumerate(groups)
    )  # fmt: skip
    return Plan(micro_batch_size=8, micro_batches=micro_batches, stages=stages)


def load_s(plan: Plan, facts: ModelFacts, profile: Profile) -> float:
    """Seconds of a round for which the busiest shared line is taken, message by message."""
    tables = Tables(profile)
    messages = Messages(plan, facts, tables)
    parcels = [p for _, p in messages.feeds()]
    for device in plan.devices:
        for kind in ("send_outputs", "send_gradients"):
            for j in range(plan.micro_batches):
                parcels += messages.leaving(device, kind, j)
        for phase in ("reduce", "sum"):
            parcels += messages.summing(device, phase)[0]
    loads = tables.trunk_loads((p.source, p.target, p.size_bytes) for p in parcels)
    return max(loads.values(), default=0.0)


def test_two_who_send_over_one_line_take_turns() -> None:
    facts = a_model(0, 6)
    own, one = (simulate(across(), facts, two_rooms(facts, shared=s)).round_s for s in (False, True))
    assert one > 1.5 * own


def test_a_round_takes_no_less_than_the_line_is_taken_for() -> None:
    facts = a_model(0, 6)
    profile, plan = two_rooms(facts, shared=True), across()
    cost = CostModel(facts, profile, plan.micro_batch_size, plan.micro_batches)
    least = load_s(plan, facts, profile)
    assert least > 0
    assert simulate(plan, facts, profile).round_s >= least * (1 - 1e-9)
    assert float(cost.seconds([cost.of_plan(plan)])[0]) >= least * (1 - 1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PLANNERS)), st.integers(0, 5), st.sampled_from([1, 2, 6]))
def test_the_load_of_any_plan_is_that_of_its_messages(planner: str, seed: int, micro_batches: int) -> None:
    facts = a_model(seed, 6)
    profile = two_rooms(facts, shared=True)
    try:
        plan = PLANNERS[planner](facts, profile, 8, micro_batches)
    except PotluckError:
        return
    cost = CostModel(facts, profile, 8, micro_batches)
    line = cost.of_plan(plan)
    found = cost.trunks.busiest_s(line, *cost.stations.edges.between([s.stage.blocks for s in line]))
    assert found == pytest.approx(load_s(plan, facts, profile), rel=1e-3, abs=1e-6)


def test_inside_a_room_nothing_changes() -> None:
    facts = a_model(0, 6)
    stages = across().stages[:1]
    plan = replace(across(), stages=(replace(stages[0], blocks=(0, 6)),))
    own, one = (two_rooms(facts, shared=s) for s in (False, True))
    assert simulate(plan, facts, one).round_s == simulate(plan, facts, own).round_s
    assert load_s(plan, facts, one) == 0


def test_samples_for_the_other_room_take_the_line_that_gradients_need() -> None:
    facts = a_model(0, 6)
    there, here = ("d2", "d0"), ("d0", "d2")
    plans = [
        replace(
            across(),
            stages=tuple(
                Stage(blocks=(3 * p, 3 * p + 3), group=(Member(device=d, share=4),), depth=2 - p)
                for p, d in enumerate(devices)
            ),
        )
        for devices in (there, here)
    ]
    one = two_rooms(facts, shared=True)
    loads = [load_s(plan, facts, one) for plan in plans]
    assert loads[0] > loads[1]
    assert all(simulate(plan, facts, one).round_s >= load * (1 - 1e-9) for plan, load in zip(plans, loads, strict=True))


def test_the_line_is_named_where_it_is_the_bottleneck() -> None:
    facts = a_model(0, 6)
    profile, plan = two_rooms(facts, shared=True), across()
    words = Explainer(plan, facts, profile, simulate(plan, facts, profile)).bottleneck()
    assert "one → two" in words or "two → one" in words

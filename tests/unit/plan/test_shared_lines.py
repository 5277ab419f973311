"""Links that share a line: what the simulation and the cost model make of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from potluck.errors import PotluckError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Tables
from potluck.plan.cost.traffic import Messages
from potluck.plan.events.event_simulation import simulate
from potluck.plan.explain import Explainer
from potluck.plan.search.cut_search import Guide
from potluck.types import COORDINATOR, LinkProfile, Medium, Member, ModelFacts, Plan, Profile, Stage
from tests.unit.plan.instances import a_model, a_profile

FIRST = (COORDINATOR, "d0", "d1")  # the others stand in the second room
SLOW, FAST = 2e5, 1e8


def two_rooms(
    facts: ModelFacts, *, shared: bool, devices: int = 4, slow: float = SLOW, medium: Medium = "full"
) -> Profile:
    """Devices of two rooms, whose links to each other have one line or a line each."""
    profile = a_profile(0, facts, [1.0] * devices, bandwidth=FAST, medium=medium)

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


def one_in_each(first: str, second: str, micro_batches: int = 4) -> Plan:
    """A stage for each of two devices."""
    stages = tuple(
        Stage(blocks=(3 * p, 3 * p + 3), group=(Member(device=d, share=micro_batches),), depth=2 - p)
        for p, d in enumerate((first, second))
    )
    return Plan(micro_batch_size=8, micro_batches=micro_batches, stages=stages)


def with_samples(facts: ModelFacts, sample_bytes: int) -> ModelFacts:
    """The same model on larger samples; their labels stay small."""
    return replace(facts, feeds=(replace(facts.feeds[0], sample_bytes=sample_bytes), *facts.feeds[1:]))


def cost_s(plan: Plan, facts: ModelFacts, profile: Profile) -> float:
    """What the cost model says of a round."""
    cost = CostModel(facts, profile, plan.micro_batch_size, plan.micro_batches)
    return float(cost.seconds([cost.of_plan(plan)])[0])


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
    least = load_s(plan, facts, profile)
    assert least > 0
    assert simulate(plan, facts, profile).round_s >= least * (1 - 1e-9)
    assert cost_s(plan, facts, profile) >= least * (1 - 1e-9)


def test_a_message_that_waits_for_its_sender_keeps_nobody_from_the_line() -> None:
    facts, plan = with_samples(a_model(0, 6), 600_000), one_in_each("d0", "d2", micro_batches=8)
    own, one = (two_rooms(facts, shared=s, slow=1.25e7) for s in (False, True))
    alone_s = simulate(plan, facts, own).round_s
    assert load_s(plan, facts, one) < 0.1 * alone_s  # labels wait behind samples, and cross when those have left
    assert simulate(plan, facts, one).round_s == pytest.approx(alone_s, rel=0.02)
    assert cost_s(plan, facts, one) == pytest.approx(alone_s, rel=0.02)


def test_on_a_half_duplex_medium_both_directions_share_the_line() -> None:
    facts, plan = a_model(0, 6), across()
    own, one = (two_rooms(facts, shared=s, medium="half") for s in (False, True))
    found_s = simulate(plan, facts, one).round_s
    assert found_s > 1.5 * simulate(plan, facts, own).round_s
    assert found_s == pytest.approx(cost_s(plan, facts, one), rel=0.1)
    both_s = load_s(plan, facts, one)
    assert both_s > 1.5 * load_s(plan, facts, two_rooms(facts, shared=True))
    assert found_s >= both_s * (1 - 1e-9)


@pytest.mark.parametrize(("medium", "in_between"), [("full", False), ("half", True), ("shared", True)])
def test_samples_take_their_sender_as_long_as_they_take_in_the_simulation(medium: Medium, in_between: bool) -> None:
    facts = a_model(0, 6)
    tables = Tables(two_rooms(facts, shared=True, medium=medium))
    held_s = tables.leaving_s(COORDINATOR, "d2", 1e6)
    assert held_s == pytest.approx(1e6 / (SLOW if in_between else FAST))


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
    plans = [one_in_each(*devices) for devices in (("d2", "d0"), ("d0", "d2"))]
    one = two_rooms(facts, shared=True)
    loads = [load_s(plan, facts, one) for plan in plans]
    assert loads[0] > loads[1]
    assert all(simulate(plan, facts, one).round_s >= load * (1 - 1e-9) for plan, load in zip(plans, loads, strict=True))


def test_the_guide_divides_no_load_among_senders_that_share_the_line() -> None:
    facts, groups = a_model(0, 6), (("d0", "d1"), ("d2", "d3"))
    rooms = [two_rooms(facts, shared=s, slow=SLOW / 10) for s in (False, True)]  # so slow that lines are the slowest
    own, one = (Guide(CostModel(facts, profile, 8, 4)).guesses(groups)[0] for profile in rooms)
    assert one.slowest_s == pytest.approx(2 * own.slowest_s)


def test_the_line_is_named_where_it_is_the_bottleneck() -> None:
    facts = a_model(0, 6)
    profile, plan = two_rooms(facts, shared=True), across()
    words = Explainer(plan, facts, profile, simulate(plan, facts, profile)).bottleneck()
    assert "one → two" in words or "two → one" in words

"""A plan in words: they must say what the numbers say."""

from __future__ import annotations

import re

from msgspec.structs import replace

from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.round_time import CostModel
from potluck.plan.events.event_simulation import simulate
from potluck.plan.explain import Explainer, bound_words
from potluck.types import Plan, Profile
from tests.unit.plan.instances import a_model, a_profile


def explained(planner: str, profile: Profile, rows: int = 8, micro_batches: int = 8, blocks: int = 6) -> Explainer:
    facts = a_model(0, blocks)
    plan = PLANNERS[planner](facts, profile, rows, micro_batches)
    return Explainer(plan, facts, profile, simulate(plan, facts, profile))


def test_a_lone_device_is_the_bottleneck() -> None:
    profile = a_profile(0, a_model(0, 6), [1.0])
    assert explained("single", profile).bottleneck() == "d0 (stage 1) computes 100% of a round and is the bottleneck"


def test_a_slow_link_is_the_bottleneck_and_named() -> None:
    profile = a_profile(0, a_model(0, 6), [1.0, 1.0], bandwidth=4e5)
    assert re.match(r"the way \w+ → \w+ is the bottleneck", explained("1f1b", profile).bottleneck())
    fast = a_profile(0, a_model(0, 6), [1.0, 1.0], bandwidth=None)
    assert "the way" not in explained("1f1b", fast).bottleneck()


def test_summing_gradients_is_named_where_it_takes_the_round() -> None:
    profile = a_profile(0, a_model(0, 6), [1.0, 1.0, 1.0])
    assert explained("data-parallel", profile).bottleneck().startswith("summing gradients in stage 1 takes")


def test_links_that_hold_a_round_up_in_both_directions_together_are_named() -> None:
    profile = a_profile(0, a_model(0, 6), [1.0, 1.0, 1.0], bandwidth=2e6)
    it = explained("gpipe", profile)
    assert 0.2 < max(it.line_parts().values()) < 0.5
    assert max(it.simulated.busy_s.values()) < 0.85 * it.simulated.round_s
    assert re.match(r"sending between devices, to and fro, holds a round up for \d\d% of it; d", it.bottleneck())


def test_waiting_for_samples_and_committing_are_named() -> None:
    profile = a_profile(0, a_model(0, 6), [1.0])
    far = replace(profile, links=tuple(replace(link, latency_s=3.0) for link in profile.links))
    assert explained("single", far).bottleneck().startswith("a round waits for samples from the coordinator: ")
    two = a_profile(0, a_model(0, 6), [1.0, 1.0])
    round_s = explained("1f1b", two).simulated.round_s
    slow = explained("1f1b", replace(two, commit_s=round_s)).bottleneck()
    assert slow.startswith("committing takes 50% of a round; d")
    alone = explained("single", replace(profile, commit_s=round_s)).bottleneck()
    assert "committing" not in alone  # a lone device decides by itself


def test_each_cut_says_what_one_block_either_way_would_cost() -> None:
    facts = a_model(0, 6)
    profile = a_profile(0, facts, [1.0, 1.0], bandwidth=None)
    it = explained("1f1b", profile)
    (line,) = it.cuts()
    at = it.plan.stages[1].blocks[0]
    assert line.startswith(f"cut before block {at} (layers.{at})")
    said = re.search(r"one block earlier takes ([\d.]+)% (longer|less)", line)
    assert said is not None
    moved = shifted(it.plan, -1)
    model = CostModel(facts, profile, 8, 8)
    before, after = model.seconds([model.of_plan(it.plan), model.of_plan(moved)])
    assert abs(after / before - 1) * 100 - float(said[1]) < 0.1
    assert (after > before) == (said[2] == "longer")


def shifted(plan: Plan, by: int) -> Plan:
    first, second = plan.stages
    middle = second.blocks[0] + by
    return replace(
        plan, stages=(replace(first, blocks=(0, middle)), replace(second, blocks=(middle, second.blocks[1])))
    )


def test_a_cut_that_memory_forces_says_so() -> None:
    facts = a_model(0, 6)
    loose = a_profile(0, facts, [1.0, 1.0], bandwidth=None)
    plan = PLANNERS["1f1b"](facts, loose, 8, 8)
    from potluck.plan.cost.memory import peak_bytes
    from potluck.plan.cost.tables import Tables

    uses = peak_bytes(plan, facts, tables=Tables(loose))
    tight = a_profile(0, facts, [1.0, 1.0], bandwidth=None, memory=[uses["d0"].total, uses["d1"].total])
    (line,) = Explainer(plan, facts, tight, simulate(plan, facts, tight)).cuts()
    assert "one block earlier does not fit d1" in line
    assert "one block later does not fit d0" in line


def test_shares_are_even_or_say_who_is_busier() -> None:
    facts = a_model(0, 4)
    even = explained("eddl", a_profile(0, facts, [1.0, 1.0]), blocks=4)
    assert even.shares() == ["stage 1 by samples, rows of every micro-batch: d0 4, d1 4; so all are busy about as long"]
    uneven = explained("data-parallel", a_profile(0, facts, [1.0, 0.25]), blocks=4)
    assert "d1 is busy 4.0 times as long as d0, which could take some of it" in uneven.shares()[0]


def test_depths_are_only_mentioned_where_they_are_unusual() -> None:
    profile = a_profile(0, a_model(0, 6), [1.0, 1.0, 1.0])
    assert explained("1f1b", profile).depths() == []
    assert explained("gpipe", profile).depths() == ["all forwards come before the first backward"]
    deep = explained("ftpipehd", profile)
    plan = replace(
        deep.plan, stages=tuple(replace(s, depth=d) for s, d in zip(deep.plan.stages, (5, 3, 1), strict=True))
    )
    lines = Explainer(plan, deep.facts, profile, deep.simulated).depths()
    assert lines == [
        "more micro-batches under way than stages to the end, to hide waiting: stage 1: 5 for 3, stage 2: 3 for 2"
    ]


def test_bounds_are_put_in_proportion() -> None:
    assert bound_words(1.2, 1.0) == "no plan can take less than 1,000.0 ms a round, and this plan is 20% above it"
    assert "which this plan reaches" in bound_words(1.001, 1.0)

"""Weight gradients that wait, as the planner sees them: faster, in time, and never for nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import Simulated, simulate
from potluck.plan.search.plan_search import Search, find_plan
from potluck.plan.search.ranking import Jury, putting_off
from potluck.types import Member, Plan, Profile, Stage
from tests.unit.plan.instances import a_model, a_profile

SIZES = (8, 6)


def able(profile: Profile, back: float = 0.5, weights: float = 0.5) -> Profile:
    """The same devices, whose blocks can put off weight gradients."""
    devices = (
        replace(d, blocks=tuple(replace(b, late_back=back, late_weights=weights) for b in d.blocks))
        for d in profile.devices
    )
    return replace(profile, devices=tuple(devices))


def busy_s(found: Simulated, device: str, kind: str) -> float:
    last = max(s.round for s in found.spans)
    return sum(s.stop_s - s.start_s for s in found.spans if (s.device, s.kind, s.round) == (device, kind, last))


def all_late(plan: Plan, count: int) -> Plan:
    for index in range(1, len(plan.stages)):
        plan = putting_off(plan, index, count)
    return plan


def test_a_pipeline_is_faster_and_does_the_same_work() -> None:
    facts = a_model(0, 6)
    profile = able(a_profile(0, facts, [1.0, 1.0, 1.0], bandwidth=1e15))
    plan = PLANNERS["1f1b"](facts, profile, *SIZES)
    before, after = (simulate(p, facts, profile) for p in (plan, all_late(plan, 3)))
    assert after.round_s < 0.95 * before.round_s
    first, *later = plan.devices
    assert busy_s(after, first, "weights") == 0
    for device in later:
        whole = busy_s(before, device, "backward")
        assert abs(busy_s(after, device, "backward") + busy_s(after, device, "weights") - whole) < 1e-9 * whole
        assert busy_s(after, device, "weights") > 0.49 * whole


def test_where_splitting_costs_more_than_it_gains_nothing_is_put_off() -> None:
    facts = a_model(0, 6)
    profile = able(a_profile(0, facts, [1.0, 1.0, 1.0], bandwidth=1e15), back=1.0, weights=0.5)
    plan = find_plan(facts, profile, [SIZES], seconds=2.0).plan
    assert all(stage.late_weights == 0 for stage in plan.stages)


def test_the_planner_puts_off_what_it_gains_from_and_has_the_memory_for() -> None:
    facts = a_model(0, 6)
    profile = able(a_profile(0, facts, [1.0, 1.0, 1.0], bandwidth=2e6))
    whole = find_plan(facts, a_profile(0, facts, [1.0, 1.0, 1.0], bandwidth=2e6), [SIZES], seconds=2.0)
    found = find_plan(facts, profile, [SIZES], seconds=2.0)
    assert len(found.plan.stages) > 1
    assert any(stage.late_weights for stage in found.plan.stages)
    assert found.round_s < whole.round_s
    whole_stages = tuple(replace(stage, late_weights=0) for stage in found.plan.stages)
    bare = peak_bytes(replace(found.plan, stages=whole_stages), facts, tables=Tables(profile))
    limits = {d.device.name: bare[d.device.name].total if d.device.name in bare else 1 for d in profile.devices}
    tight = replace(
        profile,
        devices=tuple(
            replace(d, device=replace(d.device, memory_bytes=limits[d.device.name])) for d in profile.devices
        ),
    )
    limited = find_plan(facts, tight, [SIZES], seconds=2.0).plan
    assert limited.stages != found.plan.stages
    for name, use in peak_bytes(limited, facts, tables=Tables(tight)).items():
        assert use.total <= limits[name]


def test_a_plan_that_is_behind_before_it_puts_off_is_still_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of one micro-batch count are ahead; one of another count would win once its weight gradients wait."""
    facts = a_model(0, 8)
    profile = able(a_profile(0, facts, [1.0, 1.0], bandwidth=1e15))
    ahead = [cut_at(cut, micro_batches=2) for cut in range(1, 7)]
    behind = cut_at(4, micro_batches=6)
    times = {**dict.fromkeys(ahead, 1.0), behind: 3.6, putting_off(behind, 1, 3): 2.4}
    monkeypatch.setattr(
        "potluck.plan.search.ranking.simulate", lambda plan, *_, **__: Simulated(times.get(plan, 9.0), {})
    )
    jury = Jury(facts, profile, Tables(profile), float("inf"))
    jury.hear((1.0, plan) for plan in (*ahead, behind))
    assert jury.best().plan in ahead
    jury.put_off()
    assert jury.best().plan == putting_off(behind, 1, 3)


def test_the_fastest_plan_is_left_only_when_nothing_near_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = a_model(0, 8)
    profile = able(a_profile(0, facts, [1.0, 1.0], bandwidth=1e15))
    late = {cut: putting_off(cut_at(cut), 1, 2) for cut in range(1, 8)}
    times = {late[cut]: 1.0 + abs(cut - 6) for cut in late}
    monkeypatch.setattr("potluck.plan.search.ranking.simulate", lambda plan, *_, **__: Simulated(times[plan], {}))
    jury = Jury(facts, profile, Tables(profile), float("inf"))
    jury.hear([(1.0, late[2])])

    def near(plan: Plan) -> list[tuple[float, Plan]]:
        cut = plan.stages[0].blocks[1]
        return [(1.0, cut_at(c)) for c in (cut - 1, cut + 1) if 0 < c < 8]

    jury.refine(near, lambda plan: [])
    assert jury.best().plan == late[6]


def test_other_groups_are_tried_where_nothing_near_is_faster_with_weight_gradients_put_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = a_model(0, 8)
    profile = able(a_profile(0, facts, [1.0, 1.0], bandwidth=1e15))
    here, there = cut_at(4), swapped(cut_at(4))
    better = putting_off(swapped(cut_at(5)), 1, 3)
    times = {here: 4.0, there: 5.0, putting_off(there, 1, 3): 3.0, better: 2.0}
    monkeypatch.setattr(
        "potluck.plan.search.ranking.simulate", lambda plan, *_, **__: Simulated(times.get(plan, 9.0), {})
    )
    jury = Jury(facts, profile, Tables(profile), float("inf"))
    jury.hear([(1.0, here)])
    near = {putting_off(there, 1, 3): [(1.0, swapped(cut_at(5)))]}
    jury.refine(lambda plan: near.get(plan, []), lambda plan: [(1.0, there)])
    assert jury.best().plan == better


def test_a_climb_starts_from_every_number_of_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = a_model(0, 8)
    profile = able(a_profile(0, facts, [1.0, 1.0], bandwidth=1e15))
    ahead, behind, summit = cut_at(4, 2), cut_at(4, 6), cut_at(5, 6)
    times = {ahead: 1.0, behind: 3.6, summit: 2.4}
    monkeypatch.setattr(
        "potluck.plan.search.ranking.simulate", lambda plan, *_, **__: Simulated(times.get(plan, 99.0), {})
    )
    jury = Jury(facts, profile, Tables(profile), float("inf"))
    jury.hear([(1.0, ahead), (1.0, behind)])
    jury.refine(lambda plan: [(1.0, summit)] if plan == behind else [], lambda plan: [])
    assert jury.best().plan == summit


def test_climbs_from_other_numbers_of_micro_batches_come_before_those_from_other_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of another kind than the fastest, a plan matters only to who tries several."""
    facts = a_model(0, 8)
    profile = able(a_profile(0, facts, [1.0, 1.0], bandwidth=1e15))
    ahead, behind = cut_at(4, 2), cut_at(4, 6)
    group = tuple(Member(device=device, share=2) for device in ("d0", "d1"))
    together = Plan(micro_batch_size=4, micro_batches=2, stages=(Stage(blocks=(0, 8), group=group),))
    times = {ahead: 1.0, together: 1.1, behind: 3.6}
    monkeypatch.setattr("potluck.plan.search.ranking.simulate", lambda plan, *_, **__: Simulated(times[plan], {}))
    jury = Jury(facts, profile, Tables(profile), float("inf"))
    jury.hear((1.0, plan) for plan in times)
    starts: list[Plan] = []

    def near(plan: Plan) -> list[tuple[float, Plan]]:
        starts.append(plan)
        return []

    jury.refine(near, lambda plan: [])
    assert starts == [ahead, behind, together]


def test_a_step_keeps_what_the_cost_model_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = a_model(0, 8)
    profile = able(a_profile(0, facts, [1.0, 1.0], bandwidth=1e15))
    start, better = cut_at(4), cut_at(5)
    times = {start: 2.0, better: 1.0}
    monkeypatch.setattr(
        "potluck.plan.search.ranking.simulate", lambda plan, *_, **__: Simulated(times.get(plan, 9.0), {})
    )
    jury = Jury(facts, profile, Tables(profile), float("inf"))
    jury.hear([(2.5, start)])
    jury.refine(lambda plan: [(1.5, better)], lambda plan: [])
    assert (jury.best().plan, jury.best().cost_s) == (better, 1.5)


def test_no_other_groups_are_looked_at_when_the_time_is_up() -> None:
    facts = a_model(0, 8)
    profile = able(a_profile(0, facts, [1.0, 1.0]))
    search = Search(CostModel(facts, profile, 4, 4), seed=0, deadline=float("inf"))
    assert search.beside(cut_at(4), deadline=float("inf"))
    assert not search.beside(cut_at(4), deadline=0.0)


def swapped(plan: Plan) -> Plan:
    first, last = plan.stages
    return replace(plan, stages=(replace(first, group=last.group), replace(last, group=first.group)))


def cut_at(cut: int, micro_batches: int = 4) -> Plan:
    stages = (
        Stage(blocks=(0, cut), group=(Member(device="d0", share=micro_batches),)),
        Stage(blocks=(cut, 8), group=(Member(device="d1", share=micro_batches),)),
    )
    return Plan(micro_batch_size=4, micro_batches=micro_batches, stages=stages)

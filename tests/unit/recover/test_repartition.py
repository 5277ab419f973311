"""Plans for those who are left are plans, hold every block, and change little."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.plan.validate import validate
from potluck.recover.repartition import candidates, nearest, settled
from potluck.types import DeviceSpec, Fleet, Member, Plan, Stage
from tests.unit.plan.instances import a_model

BLOCKS = 8
FACTS = a_model(3, BLOCKS)


def stage(first: int, end: int, *devices: str, sharing: str = "turns", shares: tuple[int, ...] = ()) -> Stage:
    group = tuple(Member(device=d, share=s) for d, s in zip(devices, shares or (6,), strict=True))
    return Stage(blocks=(first, end), group=group, sharing=sharing)  # type: ignore[arg-type]


def plan_of(*stages: Stage) -> Plan:
    return Plan(micro_batch_size=8, micro_batches=6, stages=stages)


def most_blocks(plan: Plan) -> float:
    return max((s.blocks[1] - s.blocks[0]) / len(s.group) for s in plan.stages)


CHAIN = plan_of(stage(0, 3, "a"), stage(3, 5, "b"), stage(5, 8, "c"))
GROUPS = plan_of(
    stage(0, 4, "a", "b", "c", sharing="samples", shares=(4, 2, 2)), stage(4, 8, "d", "e", shares=(4, 2))
)  # fmt: skip


def test_peers_take_the_share_in_proportion() -> None:
    [found] = candidates(GROUPS, {"a"})
    assert [(m.device, m.share) for m in found.stages[0].group] == [("b", 4), ("c", 4)]
    assert found.stages[1] == GROUPS.stages[1]
    [found] = candidates(GROUPS, {"d"})
    assert [(m.device, m.share) for m in found.stages[1].group] == [("e", 6)]


def test_neighbours_take_the_blocks_of_a_lost_stage() -> None:
    cuts = {tuple(s.blocks for s in p.stages) for p in candidates(CHAIN, {"b"})}
    assert cuts == {((0, cut), (cut, 8)) for cut in (3, 4, 5)}
    best = nearest(CHAIN, {"b"}, (), most_blocks)
    assert best is not None
    assert [s.blocks for s in best.stages] == [(0, 4), (4, 8)]


def test_at_the_ends_there_is_one_neighbour() -> None:
    assert [[s.blocks for s in p.stages] for p in candidates(CHAIN, {"a"})] == [[(0, 5), (5, 8)]]
    assert [[s.blocks for s in p.stages] for p in candidates(CHAIN, {"c"})] == [[(0, 3), (3, 8)]]


def test_one_that_had_nothing_to_do_takes_the_stage() -> None:
    best = nearest(CHAIN, {"b"}, ("spare",), most_blocks)
    assert best is not None
    assert [m.device for s in best.stages for m in s.group] == ["a", "spare", "c"]


def test_a_group_spares_a_device_for_a_stage_that_has_none() -> None:
    plan = plan_of(GROUPS.stages[0], stage(4, 8, "d"))
    found = [tuple(p.devices) for p in candidates(plan, {"d"})]
    assert ("b", "c", "a") in found


def test_when_nobody_is_left_there_is_no_plan() -> None:
    assert nearest(CHAIN, {"a", "b", "c"}, (), most_blocks) is None
    assert nearest(CHAIN, {"a"}, (), lambda plan: float("inf")) is None


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_every_candidate_is_a_valid_plan_without_the_lost(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, BLOCKS - 1), max_size=3)))
    names = (f"d{n}" for n in itertools.count())
    stages = []
    for first, end in itertools.pairwise([0, *cuts, BLOCKS]):
        shares = data.draw(st.sampled_from([(), (3, 3), (4, 2), (2, 2, 2)]))
        by_samples = bool(shares) and data.draw(st.booleans())
        rows = {(3, 3): (4, 4), (4, 2): (6, 2), (2, 2, 2): (4, 2, 2)}
        given_shares = rows[shares] if by_samples else shares
        members = [next(names) for _ in given_shares or (6,)]
        stages.append(stage(first, end, *members, sharing="samples" if by_samples else "turns", shares=given_shares))
    plan = plan_of(*stages)
    everybody = Fleet(devices=tuple(DeviceSpec(name=d) for d in (*plan.devices, "spare")))
    validate(plan, FACTS, everybody, "refuse")
    lost = data.draw(st.sets(st.sampled_from(plan.devices), min_size=1))
    idle = ("spare",) if data.draw(st.booleans()) else ()
    found = list(itertools.islice(candidates(plan, lost, idle), 200))
    assert bool(found) == (len(lost) < len(plan.devices) or bool(idle))
    for candidate in found:
        validate(candidate, FACTS, everybody, "refuse")
        assert not lost & set(candidate.devices)


def test_devices_change_places_as_long_as_that_costs_less() -> None:
    holders = {"a": 2, "b": 0, "c": 1}

    def misplaced(plan: Plan) -> float:
        return sum(holders.get(s.group[0].device, 9) != place for place, s in enumerate(plan.stages))

    found = settled(CHAIN, ("spare",), misplaced)
    assert [s.group[0].device for s in found.stages] == ["b", "c", "a"]
    assert [s.blocks for s in found.stages] == [s.blocks for s in CHAIN.stages]


def test_an_idle_device_takes_a_place_if_that_costs_less() -> None:
    found = settled(CHAIN, ("spare",), lambda plan: float("b" in plan.devices))
    assert [s.group[0].device for s in found.stages] == ["a", "spare", "c"]


def test_a_plan_that_costs_least_stays_as_it_is() -> None:
    assert settled(CHAIN, ("spare",), lambda plan: 1.0) is CHAIN


def test_of_two_that_do_not_reach_each_other_one_is_left_out() -> None:
    best = nearest(CHAIN, (), (), most_blocks, [("a", "b")])
    assert best is not None
    assert len(set(best.devices) & {"a", "b"}) == 1
    assert "c" in best.devices
    spare = nearest(CHAIN, {"c"}, ("spare",), most_blocks, [("spare", "a")])
    assert spare is not None
    assert set(spare.devices) == {"a", "b"}  # the idle one would not reach a
    assert nearest(CHAIN, (), ("spare",), most_blocks, [("spare", "a")]) == CHAIN
    assert nearest(CHAIN, (), (), most_blocks) == CHAIN

"""Rows and routes: every row of a micro-batch is somewhere, and gets where it is needed, exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.plan.routes import Part, Route, micro_batch_sizes, routes, rows
from potluck.types import COORDINATOR, Member, Plan, Sharing, Stage


def plan_of(shares: list[int], sharing: Sharing) -> Plan:
    group = tuple(Member(device=f"d{i}", share=share) for i, share in enumerate(shares))
    total = sum(shares)
    stage = Stage(blocks=(0, 1), group=group, sharing=sharing)
    return Plan(micro_batch_size=total, micro_batches=total, stages=(stage,))


@st.composite
def partitions(draw: st.DrawFn, size: int, names: str) -> list[Part]:
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=5))) if size > 1 else []
    return [Part(f"{names}{i}", a, b) for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, size], strict=True))]


def rows_of(parts: tuple[Part, ...]) -> list[int]:
    return [row for part in parts for row in range(part.start, part.stop)]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.data())
def test_routes_carry_every_row_once_from_who_has_it_to_who_needs_it(size: int, data: st.DataObject) -> None:
    source, target = data.draw(partitions(size, "s")), data.draw(partitions(size, "t"))
    found = routes(source, target)
    carried = [(row, route.source, route.target) for route in found for row in range(route.start, route.stop)]
    has = {row: part.device for part in source for row in range(part.start, part.stop)}
    needs = {row: part.device for part in target for row in range(part.start, part.stop)}
    assert carried == [(row, has[row], needs[row]) for row in range(size)]
    assert len({(route.source, route.target) for route in found}) == len(found), "two messages where one would do"
    back = routes(target, source)
    assert [(r.target, r.source, r.start, r.stop) for r in back] == [
        (r.source, r.target, r.start, r.stop) for r in found
    ]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from(["turns", "samples"]), st.data())
def test_parts_hold_every_row_once_and_nobody_more_than_its_share(
    shares: list[int], sharing: Sharing, data: st.DataObject
) -> None:
    plan = plan_of(shares, sharing)
    size, j = data.draw(st.integers(0, plan.micro_batch_size)), data.draw(st.integers(0, plan.micro_batches - 1))
    parts = rows(plan.stages[0], j, size, plan)
    assert rows_of(parts) == list(range(size))
    assert all(part.stop > part.start for part in parts)
    if sharing == "samples":
        share = {member.device: member.share for member in plan.stages[0].group}
        assert all(part.stop - part.start <= share[part.device] for part in parts)


def test_full_micro_batch_by_samples_is_cut_exactly_at_the_shares() -> None:
    plan = plan_of([5, 3, 8], "samples")
    assert rows(plan.stages[0], 0, 16, plan) == (Part("d0", 0, 5), Part("d1", 5, 8), Part("d2", 8, 16))


def test_small_micro_batch_leaves_out_who_has_no_rows() -> None:
    plan = plan_of([2, 2, 8], "samples")
    assert rows(plan.stages[0], 0, 3, plan) == (Part("d1", 0, 1), Part("d2", 1, 3))
    assert rows(plan.stages[0], 0, 0, plan) == ()


def test_by_turns_one_device_holds_all_rows() -> None:
    plan = plan_of([2, 1], "turns")
    assert [rows(plan.stages[0], j, 3, plan)[0].device for j in range(3)] == ["d0", "d1", "d0"]
    assert rows(plan.stages[0], 1, 2, plan) == (Part("d1", 0, 2),)


def test_feeds_come_from_the_coordinator() -> None:
    target = [Part("a", 0, 3), Part("b", 3, 4)]
    assert routes([Part(COORDINATOR, 0, 4)], target) == (Route(COORDINATOR, "a", 0, 3), Route(COORDINATOR, "b", 3, 4))


@pytest.mark.parametrize(
    ("samples", "size", "expected"),
    [
        (10, 4, (4, 4, 2)),
        (8, 4, (4, 4)),
        (3, 4, (3,)),
        (0, 4, ()),
        (3, 1, (1, 1, 1)),
        (9, 4, (4, 3, 2)),
        (5, 2, (2, 2, 1)),
    ],
)
def test_micro_batch_sizes(samples: int, size: int, expected: tuple[int, ...]) -> None:
    assert micro_batch_sizes(samples, size) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([Part("a", 0, 4)], [Part("b", 0, 3)]),  # not the same rows
        ([Part("a", 0, 2), Part("b", 3, 4)], [Part("c", 0, 4)]),  # a gap
        ([Part("a", 0, 3), Part("b", 2, 4)], [Part("c", 0, 4)]),  # twice
    ],
)
def test_routes_between_partitions_of_different_rows_are_refused(source: list[Part], target: list[Part]) -> None:
    with pytest.raises(ValueError, match="row"):
        routes(source, target)


@pytest.mark.parametrize(("micro_batch", "size"), [(3, 3), (-1, 3), (0, 4), (0, -1)])
def test_rows_of_a_micro_batch_that_the_plan_does_not_have_are_refused(micro_batch: int, size: int) -> None:
    plan = plan_of([2, 1], "turns")
    with pytest.raises(ValueError, match="the plan has 3 of 3"):
        rows(plan.stages[0], micro_batch, size, plan)

"""Which shapes are worth judging."""

from __future__ import annotations

from itertools import pairwise

import pytest

from potluck.plan.cost.round_time import CostModel, Shape
from potluck.plan.search.shapes import Shapes
from tests.models.planner_instances import instance
from tests.unit.plan.instances import a_model, a_profile

GROUPS = (("d0",), ("d1",))
CUTS = (2, 4)


def cost_model(memory: int = 0, micro_batches: int = 8) -> CostModel:
    """Two equal devices with so many bytes each."""
    facts = a_model(0, 4, weight=1e4)
    return CostModel(facts, a_profile(0, facts, [1.0, 1.0], memory=[memory] * 2 if memory else ()), 4, micro_batches)


def shapes_of(cost: CostModel, *, few: bool = False, plain: bool = False) -> list[Shape]:
    return list(Shapes(cost, few=few, plain=plain).of(GROUPS, CUTS))


def test_with_room_for_all_stages_are_as_deep_as_is_of_use_and_a_gentler_shape_is_tried_too() -> None:
    assert [s.depths for s in shapes_of(cost_model())] == [(3, 1), (3, 1)]
    assert [s.depths for s in shapes_of(cost_model(), few=True)] == [(3, 1), (3, 1), (2, 1)]


def test_groups_by_turns_may_be_deeper_unless_shapes_are_to_be_plain() -> None:
    facts = a_model(0, 4)
    cost = CostModel(facts, a_profile(0, facts, [1.0] * 3), 4, 8)
    groups = (("d0", "d1"), ("d2",))
    deepest = {plain: next(iter(Shapes(cost, few=False, plain=plain).of(groups, CUTS))) for plain in (False, True)}
    assert [deepest[True].depths, deepest[False].depths] == [(3, 1), (4, 1)]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_tried_has_falling_depths_and_what_is_tried_first_fits(seed: int) -> None:
    facts, profile = instance(seed, 3, 8)
    cost = CostModel(facts, profile, 8, 8)
    groups = (("d0",), ("d1", "d2"))
    found = list(Shapes(cost, few=True, plain=False).of(groups, (4, 8)))
    assert all(a >= b for shape in found for a, b in pairwise(shape.depths))
    assert all(cost.line(shape) is not None for shape in found[:1])
    assert all([stop for (_, stop), _ in shape.stages] == [4, 8] for shape in found)


def test_where_memory_is_short_stages_are_less_deep_then_recompute_and_then_there_is_no_shape() -> None:
    seen: list[tuple[int, bool]] = []
    for memory in range(1_000_000, 0, -20_000):
        cost = cost_model(memory)
        for first in shapes_of(cost)[:1]:
            if (kind := (first.depths[0], first.recompute[0])) not in seen:
                seen.append(kind)
            if any(first.recompute):
                assert shapes_of(cost, plain=True) == []
    assert seen == [(3, False), (2, False), (2, True)]
    assert shapes_of(cost_model(10_000)) == []


def test_around_a_shape_are_shifted_cuts_as_it_is_and_other_depths_of_its_own() -> None:
    cost = cost_model()
    shape = Shape.of([((0, 2), ("d0",)), ((2, 4), ("d1",))], (2, 1))
    found = list(Shapes(cost, few=False, plain=False).around(shape))
    shifted = Shape.of([((0, 1), ("d0",)), ((1, 4), ("d1",))], (2, 1))
    assert shifted in found
    assert Shape.of(shape.stages, (3, 1)) in found
    assert shape not in found
    assert {tuple(devices for _, devices in s.stages) for s in found} == {GROUPS}

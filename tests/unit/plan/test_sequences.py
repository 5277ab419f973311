"""Sequences of groups, and plans one step away from a given one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.plan.cost.round_time import CostModel, Shape
from potluck.plan.search.cut_search import Guide
from potluck.plan.search.neighbours import other_depths, ranges, shifted_cuts
from potluck.plan.search.sequences import Groups, all_sequences, neighbours, shuffled, starts, without
from tests.unit.plan.instances import a_model, a_profile

DEVICES = ("d0", "d1", "d2", "d3")


@pytest.mark.parametrize(("count", "sequences"), [(1, 1), (2, 5), (3, 25), (4, 149)])
def test_all_sequences_are_there_once(count: int, sequences: int) -> None:
    found = list(all_sequences(DEVICES[:count]))
    assert len(found) == sequences
    assert len({tuple(frozenset(g) for g in groups) for groups in found}) == sequences
    assert all(group for groups in found for group in groups)


EVERY = sorted(all_sequences(DEVICES))


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(EVERY), st.integers(0, 5))
def test_neighbours_use_no_device_twice_and_come_in_an_order_of_their_seed(groups: Groups, seed: int) -> None:
    found = neighbours(groups, DEVICES, seed)
    assert groups not in found
    assert len(set(found)) == len(found) > 0
    for other in found:
        used = [d for group in other for d in group]
        assert len(set(used)) == len(used) > 0
        assert all(group and list(group) == sorted(group) for group in other)
    assert found == neighbours(groups, DEVICES, seed)
    assert set(found) == set(neighbours(groups, DEVICES, seed + 1))
    assert shuffled(groups, DEVICES, seed) == shuffled(groups, DEVICES, seed)


def test_from_anywhere_every_sequence_can_be_reached() -> None:
    reached: set[Groups] = set()
    waiting: list[Groups] = [(("d2",),)]
    while waiting:
        groups = waiting.pop()
        if groups not in reached:
            reached.add(groups)
            waiting += neighbours(groups, DEVICES[:3], 0)
    assert reached == set(all_sequences(DEVICES[:3]))


def test_a_device_that_was_alone_takes_its_group_with_it() -> None:
    assert without((("a",), ("b", "c")), "a") == (("b", "c"),)
    assert without((("a",), ("b", "c")), "c") == (("a",), ("b",))


def test_a_search_begins_with_the_fastest_alone_and_everybody_together() -> None:
    facts = a_model(0, 6)
    guide = Guide(CostModel(facts, a_profile(0, facts, [1.0, 4.0, 2.0]), 8, 4))
    found = starts(guide)
    assert found[0] == (("d1",),)
    assert (("d0", "d1", "d2"),) in found
    assert len(set(found)) == len(found)
    in_line = [tuple(g[0] for g in groups) for groups in found if len(groups) == 3]
    assert ("d1", "d2", "d0") in in_line


def test_cuts_move_by_a_little_and_leave_every_stage_a_block() -> None:
    found = list(shifted_cuts([2, 4, 6]))
    assert [3, 4, 6] in found
    assert [1, 3, 6] in found  # two together
    assert [4, 4, 6] not in found
    assert all(ends[-1] == 6 and all(a < b for a, b in pairwise([0, *ends])) for ends in found)
    assert list(shifted_cuts([6])) == []
    assert ranges([2, 4, 6]) == [(0, 2), (2, 4), (4, 6)]


def test_one_depth_changes_or_one_recomputation_goes() -> None:
    stages = (((0, 2), ("a",)), ((2, 4), ("b",)))
    found = list(other_depths(Shape(stages, (3, 2), (True, False)), [4, 3]))
    assert [(shape.depths, shape.recompute) for shape in found] == [
        ((2, 2), (True, False)),
        ((4, 2), (True, False)),
        ((3, 2), (False, False)),
        ((3, 1), (True, False)),
        ((3, 3), (True, False)),
    ]

"""Plans one step away: each can be, each is really another one, and none is a longer step away."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from potluck.plan.cost.round_time import Shape
from potluck.plan.search.neighbours import other_depths, ranges, shifted_cuts

ENDS = st.sets(st.integers(1, 20), min_size=1, max_size=6).map(sorted)


@given(ENDS)
def test_shifted_cuts_leave_each_stage_a_block_and_the_model_whole(ends: list[int]) -> None:
    for moved in shifted_cuts(ends):
        assert moved != ends
        assert moved[-1] == ends[-1]
        assert all(a < b for a, b in pairwise([0, *moved]))
        shifts = {b - a for a, b in zip(ends, moved, strict=True)} - {0}
        assert len(shifts) == 1
        assert abs(shifts.pop()) <= 2


def test_the_only_cut_of_two_stages_moves_one_or_two_blocks_either_way() -> None:
    assert sorted(shifted_cuts([4, 8])) == [[2, 8], [3, 8], [5, 8], [6, 8]]
    assert sorted(shifted_cuts([1, 3])) == [[2, 3]]
    assert list(shifted_cuts([5])) == []


def test_neighbouring_cuts_move_together_even_where_one_alone_has_no_room() -> None:
    assert [2, 3, 9] in list(shifted_cuts([1, 2, 9]))


def test_one_depth_changes_within_what_the_stages_behind_need_and_memory_allows() -> None:
    shape = Shape.of([((0, 1), ("a",)), ((1, 2), ("b",))], (2, 1))
    assert [s.depths for s in other_depths(shape, [4, 2])] == [(3, 1), (4, 1), (2, 2)]
    assert [s.depths for s in other_depths(shape, [2, 1])] == []


def test_a_stage_may_recompute_no_more() -> None:
    shape = Shape((((0, 1), ("a",)), ((1, 2), ("b",))), (2, 1), (True, False))
    assert [s.recompute for s in other_depths(shape, [2, 1])] == [(False, False)]


@given(ENDS)
def test_ranges_follow_each_other_from_the_first_block_to_the_last(ends: list[int]) -> None:
    found = ranges(ends)
    assert [stop for _, stop in found] == ends
    assert [start for start, _ in found] == [0, *ends[:-1]]

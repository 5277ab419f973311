"""Which cells are measured in which order, and what stands in those that were not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.profile.cells import BlockSize, cell_order, fill, middle_mean, only, row_counts, scaled
from potluck.types import BlockProfile, Timing


def timing(rows: int, step_s: float, kept: int = 100) -> Timing:
    return Timing(rows=rows, forward_s=step_s / 3, backward_s=2 * step_s / 3, kept_bytes=kept, working_bytes=10)


def sizes(*work: float) -> list[BlockSize]:
    """Of blocks that are trained, with a byte of parameters for each unit of work."""
    return [BlockSize(each, int(each), True) for each in work]


def step_s(block: BlockProfile, rows: int) -> float:
    cell = only(block, rows)
    return cell.forward_s + cell.backward_s


@given(st.integers(1, 4096))
def test_the_jobs_micro_batch_comes_first_and_no_row_count_twice(micro_batch):
    counts = row_counts(micro_batch)
    assert counts[0] == micro_batch
    assert len(set(counts)) == len(counts)
    assert all(count >= min(2, micro_batch) for count in counts)  # one row has no variance


def test_every_block_has_its_main_cell_before_any_has_another():
    order = cell_order([0, 1, 2], (8, 2, 4), lambda block: [1.0, 3.0, 2.0][block])
    assert order == [(1, 8), (2, 8), (0, 8), (1, 2), (1, 4), (2, 2), (2, 4), (0, 2), (0, 4)]


def test_measured_cells_stay_as_they_are():
    cells = {(0, 8): timing(8, 0.8), (1, 8): timing(8, 1.6)}
    filled = fill(cells, {0: 0.1, 1: 0.2}, (8,), sizes(1.0, 2.0))
    assert [only(block, 8) for block in filled] == [cells[0, 8], cells[1, 8]]
    assert [block.update_s for block in filled] == [0.1, 0.2]


def test_between_two_measured_row_counts_a_line_is_drawn():
    cells = {(0, 2): timing(2, 1.0), (0, 8): timing(8, 4.0)}
    cell = only(fill(cells, {}, (8, 2, 4), sizes(1.0))[0], 4)
    assert cell.forward_s + cell.backward_s == pytest.approx(2.0)
    assert not cell.measured


def test_beyond_what_a_block_knows_it_scales_as_the_others_do():
    cells = {(0, 8): timing(8, 4.0), (0, 2): timing(2, 2.0), (1, 8): timing(8, 1.0, kept=800)}
    filled = fill(cells, {}, (8, 2), sizes(1.0, 1.0))
    assert step_s(filled[1], 2) == pytest.approx(0.5)  # block 0 halves from 8 to 2, not a quarter
    assert only(filled[1], 2).kept_bytes == 200  # memory goes by rows


def test_a_block_never_reached_takes_time_by_its_size():
    cells = {(0, 8): timing(8, 1.0)}
    filled = fill(cells, {0: 0.1}, (8, 2), sizes(1.0, 3.0))
    assert step_s(filled[1], 8) == pytest.approx(3.0)
    assert filled[1].update_s == pytest.approx(0.3)
    assert not any(cell.measured for cell in filled[1].timings)


def test_a_frozen_block_that_was_not_measured_has_no_update_no_backward_and_keeps_nothing():
    cells = {(0, 8): timing(8, 1.0)}
    last = fill(cells, {0: 0.1}, (8,), [BlockSize(1.0, 1, True), BlockSize(3.0, 0, False)])[1]
    assert last.update_s == 0
    assert only(last, 8).forward_s == pytest.approx(1.0)
    assert (only(last, 8).backward_s, only(last, 8).kept_bytes) == (0, 0)


def test_what_frozen_blocks_do_not_have_says_nothing_of_blocks_that_are_trained():
    frozen = Timing(rows=8, forward_s=1.0, backward_s=0.0, kept_bytes=0, working_bytes=10)
    sizes = [BlockSize(1.0, 0, False), BlockSize(1.0, 1, True), BlockSize(1.0, 1, True)]
    last = fill({(0, 8): frozen, (1, 8): timing(8, 3.0)}, {}, (8,), sizes)[2]
    assert only(last, 8).backward_s == pytest.approx(2.0)
    assert only(last, 8).kept_bytes == 100


def test_rows_ascend_in_every_block():
    filled = fill({(0, 8): timing(8, 1.0)}, {}, (8, 4, 2, 16), sizes(1.0))
    assert [cell.rows for cell in filled[0].timings] == [2, 4, 8, 16]


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 4), st.sampled_from([2, 4, 8, 16])), st.floats(1e-6, 10.0), min_size=1, max_size=12
    )
)
def test_whatever_was_measured_every_cell_is_filled_with_a_time(found):
    cells = {(block, rows): timing(rows, seconds) for (block, rows), seconds in found.items()}
    filled = fill(cells, {}, (8, 4, 2, 16), sizes(1.0, 2.0, 3.0, 4.0, 5.0))
    assert all(len(block.timings) == 4 for block in filled)
    assert all(cell.forward_s > 0 and cell.backward_s > 0 for block in filled for cell in block.timings)
    assert sum(cell.measured for block in filled for cell in block.timings) == len(cells)


def test_outliers_do_not_move_the_middle_mean_and_a_quota_does():
    assert middle_mean([1.0, 1.1, 0.9, 50.0]) == pytest.approx(1.05)
    assert middle_mean([1.0, 1.0, 3.0, 3.0]) == pytest.approx(2.0)
    assert middle_mean([4.0]) == 4.0


def test_a_slower_device_takes_longer_with_the_same_memory():
    block = BlockProfile(timings=(timing(8, 1.0),), update_s=0.5)
    slow = scaled(block, 4.0)
    assert step_s(slow, 8) == pytest.approx(4.0)
    assert slow.update_s == 2.0
    assert only(slow, 8).kept_bytes == only(block, 8).kept_bytes

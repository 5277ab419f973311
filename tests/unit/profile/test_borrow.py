"""Cells that a slow device had no time for come from a fast one of its kind, at its own pace."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.profile.borrow import borrow, borrow_memory
from potluck.types import BlockProfile, DeviceKind, DeviceProfile, DeviceSpec, Timing

ROWS = (2, 8, 16)


def timing(rows: int, seconds: float, measured: bool = True) -> Timing:
    return Timing(
        rows=rows, forward_s=seconds / 3, backward_s=2 * seconds / 3, kept_bytes=100 * rows, working_bytes=rows,
        measured=measured,
    )  # fmt: skip


def device(name: str, *blocks: dict[int, float], guessed: float = 9.0, kind: DeviceKind = "cpu") -> DeviceProfile:
    """A device with what it measured of each block; the rest is a bad guess."""
    profiles = (
        BlockProfile(timings=tuple(timing(r, known.get(r, guessed), r in known) for r in ROWS)) for known in blocks
    )
    return DeviceProfile(device=DeviceSpec(name=name, kind=kind), blocks=tuple(profiles))


def step_s(found: DeviceProfile, block: int, rows: int) -> float:
    cell = next(t for t in found.blocks[block].timings if t.rows == rows)
    return cell.forward_s + cell.backward_s


FAST = device("fast", {2: 1.0, 8: 2.0, 16: 3.0}, {2: 0.5, 8: 1.5, 16: 4.0}, {2: 0.1, 8: 0.2, 16: 0.3})


def test_a_block_not_measured_takes_what_the_devices_differ_by() -> None:
    slow = device("slow", {8: 8.0}, {8: 6.0}, {})
    fast, helped = borrow([FAST, slow])
    assert fast is FAST
    assert [step_s(helped, 2, r) for r in ROWS] == pytest.approx([0.4, 0.8, 1.2])
    assert [step_s(helped, 0, r) for r in ROWS] == pytest.approx([4.0, 8.0, 12.0])
    assert [cell.measured for cell in helped.blocks[0].timings] == [False, True, False]
    assert helped.blocks[2].timings[2].kept_bytes == 1600


def test_a_blocks_own_ratio_counts_more_than_the_devices() -> None:
    slow = device("slow", {8: 8.0}, {8: 3.0}, {8: 0.8})
    _, helped = borrow([FAST, slow])
    assert step_s(helped, 1, 16) == pytest.approx(2 * 4.0)


def test_blocks_measured_at_both_row_counts_tell_how_the_devices_differ_there() -> None:
    slow = device("slow", {8: 8.0, 16: 20.0}, {8: 3.0}, {})
    _, helped = borrow([FAST, slow])
    further_apart = (20 / 3) / (8 / 2)
    assert step_s(helped, 1, 16) == pytest.approx(2 * further_apart * 4.0)
    assert step_s(helped, 1, 2) == pytest.approx(2 * 0.5)
    assert step_s(helped, 2, 16) == pytest.approx(20 / 3 * 0.3)


def test_what_the_lender_only_guesses_is_no_better() -> None:
    fast = device("fast", {2: 1.0, 8: 2.0, 16: 3.0}, {8: 1.5, 16: 4.0}, guessed=7.0)
    slow = device("slow", {8: 8.0}, {8: 6.0})
    _, helped = borrow([fast, slow])
    assert step_s(helped, 1, 2) == 9.0
    assert step_s(helped, 1, 16) == pytest.approx(16.0)


def test_nothing_comes_from_another_kind_or_from_too_little() -> None:
    gpu = device("gpu", *({2: 0.1, 8: 0.1, 16: 0.1} for _ in range(3)), kind="cuda")
    slow = device("slow", {8: 8.0}, {8: 6.0}, {})
    barely = device("barely", {8: 8.0}, {}, {})
    assert borrow([gpu, slow])[1] is slow
    assert borrow([FAST, barely])[1] is barely


def taking(name: str, resident: float, rehearsed: int, kind: DeviceKind = "cpu", torch: str = "2.13") -> DeviceProfile:
    found = device(name, {2: 1.0}, kind=kind)
    blocks = tuple(replace(block, resident=resident) for block in found.blocks)
    return replace(found, blocks=blocks, code_bytes=int(resident * 100), rehearsed=rehearsed, torch_version=torch)


def test_memory_is_as_the_most_thorough_of_a_kind_found_it() -> None:
    fleet = [
        taking("slow", 1.3, 0), taking("brief", 1.1, 12), taking("full", 1.2, 36), taking("also", 1.25, 36),
        taking("gpu", 1.7, 50, kind="cuda"), taking("old", 1.6, 0, torch="2.10"),
    ]  # fmt: skip
    found = [(d.blocks[0].resident, d.code_bytes, d.rehearsed) for d in borrow_memory(fleet)]
    assert found == [(1.2, 120, 36), (1.2, 120, 36), (1.2, 120, 36), (1.25, 125, 36), (1.7, 170, 50), (1.6, 160, 0)]

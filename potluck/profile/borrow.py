"""What a slow device had no time to measure, from what a faster one of the same kind did measure.

How long a block takes on a slow device is better told by the same block on a fast one, times what they differ by, than
by the sizes of blocks; and how that grows with the rows, better than by proportion.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from potluck.types import BlockProfile, DeviceProfile, Timing

_FEWEST = 2  # cells that both have measured, to tell how they differ


def borrow(devices: Sequence[DeviceProfile]) -> tuple[DeviceProfile, ...]:
    """The devices, with cells that say nothing of their own replaced."""
    return tuple(_helped(device, devices) for device in devices)


def _helped(device: DeviceProfile, others: Sequence[DeviceProfile]) -> DeviceProfile:
    alike = [o for o in others if o.device.kind == device.device.kind]
    lender = max(alike, key=_measured)
    if lender is device or _measured(lender) == _measured(device):
        return device
    pairs = list(zip(device.blocks, lender.blocks, strict=True))
    ratios = [ratio for mine, theirs in pairs for ratio in _ratios(mine, theirs).values()]
    if len(ratios) < _FEWEST:
        return device
    usual = statistics.median(ratios)
    seen = {cell.rows for block in device.blocks for cell in block.timings if cell.measured}
    return replace(device, blocks=tuple(_filled(mine, theirs, usual, seen) for mine, theirs in pairs))


def _filled(mine: BlockProfile, theirs: BlockProfile, usual: float, seen: set[int]) -> BlockProfile:
    """A block, at row counts of which the device knows nothing, or all of them if it has not measured the block."""
    lent = {cell.rows: cell for cell in theirs.timings}
    own = _ratios(mine, theirs)
    timings = []
    for cell in mine.timings:
        known = cell.measured or cell.rows not in lent or (own and cell.rows in seen)
        factor = own[min(own, key=lambda rows: abs(rows - cell.rows))] if own else usual
        timings.append(cell if known else _scaled(lent[cell.rows], factor))
    return replace(mine, timings=tuple(timings))


def _scaled(cell: Timing, factor: float) -> Timing:
    return replace(cell, forward_s=cell.forward_s * factor, backward_s=cell.backward_s * factor, measured=False)


def _ratios(mine: BlockProfile, theirs: BlockProfile) -> dict[int, float]:
    """Rows → how much longer the block takes here, where both have measured it."""
    lent = {cell.rows: _step_s(cell) for cell in theirs.timings if cell.measured}
    return {
        cell.rows: _step_s(cell) / lent[cell.rows] for cell in mine.timings if cell.measured and lent.get(cell.rows)
    }


def _step_s(cell: Timing) -> float:
    return cell.forward_s + cell.backward_s


def _measured(device: DeviceProfile) -> int:
    return sum(cell.measured for block in device.blocks for cell in block.timings)

"""What a slow device had no time to measure, from what a faster one of the same kind did measure.

How long a block takes on a slow device is better told by the same block on a fast one, times what they differ by, than
by the sizes of blocks; and how that grows with the rows, better than by how other blocks grow: large weights take as
long for two rows as for sixteen, large images do not. What putting weight gradients off would save is as much as
elsewhere, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from potluck.profile.cells import step_s
from potluck.types import BlockProfile, DeviceProfile, Timing

_LateParts = tuple[float, float, float]  # back, weights, kept
Ratios = dict[int, float]  # rows → how much longer a block takes on a device than on its lender

_FEWEST = 2  # cells that both have measured, to tell how they differ


def borrow(devices: Sequence[DeviceProfile]) -> tuple[DeviceProfile, ...]:
    """The devices, with cells that say nothing of their own replaced."""
    return tuple(_helped(device, devices) for device in devices)


def borrow_memory(devices: Sequence[DeviceProfile]) -> tuple[DeviceProfile, ...]:
    """The devices, with how much memory they take as found by the one of their kind that had most time to find out.

    How many bytes a process takes for each that its tensors need has to do with torch, and not with how fast it is.
    """
    return tuple(with_lent_memory(device, devices) for device in devices)


def with_lent_memory(device: DeviceProfile, others: Sequence[DeviceProfile]) -> DeviceProfile:
    """A device with what the most thorough of its kind found, unless it was as thorough itself."""
    alike = [o for o in others if (o.device.kind, o.torch_version) == (device.device.kind, device.torch_version)]
    lender = max(alike, key=lambda other: other.rehearsed, default=device)
    if lender.rehearsed <= device.rehearsed:
        return device
    pairs = zip(device.blocks, lender.blocks, strict=True)
    blocks = tuple(replace(mine, resident=theirs.resident) for mine, theirs in pairs)
    return replace(device, blocks=blocks, code_bytes=lender.code_bytes, rehearsed=lender.rehearsed)


def _helped(device: DeviceProfile, others: Sequence[DeviceProfile]) -> DeviceProfile:
    alike = [o for o in others if o.device.kind == device.device.kind]
    lender = max(alike, key=_measured)
    if lender is device or _measured(lender) == _measured(device):
        return device
    pairs = list(zip(device.blocks, lender.blocks, strict=True))
    ratios = [_ratios(mine, theirs) for mine, theirs in pairs]
    if sum(map(len, ratios)) < _FEWEST:
        return device
    blocks = (_filled(mine, theirs, own, ratios) for (mine, theirs), own in zip(pairs, ratios, strict=True))
    return replace(device, blocks=tuple(blocks))


def _filled(mine: BlockProfile, theirs: BlockProfile, own: Ratios, ratios: Sequence[Ratios]) -> BlockProfile:
    """A block, with what the lender measured and the device did not."""
    lent = {cell.rows: cell for cell in theirs.timings if cell.measured}
    timings = (
        cell if cell.measured or cell.rows not in lent else _scaled(lent[cell.rows], _factor(own, cell.rows, ratios))
        for cell in mine.timings
    )
    return replace(mine, timings=tuple(timings))


def _factor(own: Ratios, rows: int, ratios: Sequence[Ratios]) -> float:
    """How much longer a block takes here at so many rows: as at the nearest that the device knows of it.

    Where blocks that it measured at both say that rows make a difference, that counts too.
    """
    if not own:
        same = [known[rows] for known in ratios if rows in known]
        return statistics.median(same or [ratio for known in ratios for ratio in known.values()])
    nearest = min(own, key=lambda known: abs(known - rows))
    trends = [known[rows] / known[nearest] for known in ratios if rows in known and nearest in known]
    return own[nearest] * (statistics.median(trends) if trends else 1.0)


def _scaled(cell: Timing, factor: float) -> Timing:
    return replace(cell, forward_s=cell.forward_s * factor, backward_s=cell.backward_s * factor, measured=False)


def _ratios(mine: BlockProfile, theirs: BlockProfile) -> Ratios:
    """Of the block, where both have measured it."""
    lent = {cell.rows: step_s(cell) for cell in theirs.timings if cell.measured}
    return {
        cell.rows: step_s(cell) / lent[cell.rows]
        for cell in mine.timings
        if cell.measured and lent.get(cell.rows) and step_s(cell)
    }


def _measured(device: DeviceProfile) -> int:
    return sum(cell.measured for block in device.blocks for cell in block.timings)


def share_late_parts(devices: Sequence[DeviceProfile], able: Sequence[bool]) -> tuple[DeviceProfile, ...]:
    """The devices; a block that one has not tried is taken to split as it does on others, in the median.

    One that nobody has tried splits as blocks do that somebody has, if it is `able`: if it has weights.
    """
    by_block = [_usual_parts(same) for same in zip(*(d.blocks for d in devices), strict=True)]
    usual = _usual_parts(block for device in devices for block in device.blocks)
    known = [parts or (usual if can else None) for parts, can in zip(by_block, able, strict=True)]
    return tuple(replace(d, blocks=tuple(map(_with_late_parts, d.blocks, known))) for d in devices)


def _usual_parts(blocks: Iterable[BlockProfile]) -> _LateParts | None:
    tried = [b for b in blocks if b.late_weights]
    if not tried:
        return None
    figures = ([b.late_back for b in tried], [b.late_weights for b in tried], [b.late_kept for b in tried])
    back, weights, kept = map(statistics.median, figures)
    return back, weights, kept


def _with_late_parts(block: BlockProfile, parts: _LateParts | None) -> BlockProfile:
    if parts is None or block.late_weights:
        return block
    return replace(block, late_back=parts[0], late_weights=parts[1], late_kept=parts[2])

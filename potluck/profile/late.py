"""What putting weight gradients off would save, where a device had no time to find out: as much as elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from potluck.types import BlockProfile, DeviceProfile

_Parts = tuple[float, float, float]  # back, weights, kept


def share_late_parts(devices: Sequence[DeviceProfile], able: Sequence[bool]) -> tuple[DeviceProfile, ...]:
    """The devices; a block that one has not tried is taken to split as it does on others, in the median.

    One that nobody has tried splits as blocks do that somebody has, if it is `able`: if it has weights.
    """
    by_block = [_median(same) for same in zip(*(d.blocks for d in devices), strict=True)]
    usual = _median(block for device in devices for block in device.blocks)
    known = [parts or (usual if can else None) for parts, can in zip(by_block, able, strict=True)]
    return tuple(replace(d, blocks=tuple(map(_filled, d.blocks, known))) for d in devices)


def _median(blocks: Iterable[BlockProfile]) -> _Parts | None:
    tried = [b for b in blocks if b.late_weights]
    if not tried:
        return None
    figures = ([b.late_back for b in tried], [b.late_weights for b in tried], [b.late_kept for b in tried])
    back, weights, kept = map(statistics.median, figures)
    return back, weights, kept


def _filled(block: BlockProfile, parts: _Parts | None) -> BlockProfile:
    if parts is None or block.late_weights:
        return block
    return replace(block, late_back=parts[0], late_weights=parts[1], late_kept=parts[2])

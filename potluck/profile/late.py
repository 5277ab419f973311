"""What putting weight gradients off would save, where a device had no time to find out: as much as elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from potluck.types import BlockProfile, DeviceProfile


def share_late_parts(devices: Sequence[DeviceProfile]) -> tuple[DeviceProfile, ...]:
    """The devices; a block that one has not tried is taken to split as it does on the others, in the median."""
    by_block = [[b for b in same if b.late_weights] for same in zip(*(d.blocks for d in devices), strict=True)]
    known = [
        (statistics.median(b.late_back for b in some), statistics.median(b.late_weights for b in some))
        if some
        else None
        for some in by_block
    ]
    return tuple(replace(d, blocks=tuple(map(_filled, d.blocks, known))) for d in devices)


def _filled(block: BlockProfile, parts: tuple[float, float] | None) -> BlockProfile:
    if parts is None or block.late_weights:
        return block
    return replace(block, late_back=parts[0], late_weights=parts[1])

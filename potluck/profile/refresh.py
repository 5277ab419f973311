"""Whether a profile from before still holds: one cell is timed again and compared."""

from __future__ import annotations

from potluck.profile.cells import only
from potluck.types import DeviceProfile, Timing

TOLERANCE = 0.15


def cell_to_retime(profile: DeviceProfile, rows: int) -> int | None:
    """The block that takes longest at this row count, of those measured; None if none was."""
    measured = {
        index: only(block, rows)
        for index, block in enumerate(profile.blocks)
        if any(cell.rows == rows and cell.measured for cell in block.timings)
    }
    return max(measured, key=lambda i: measured[i].forward_s + measured[i].backward_s, default=None)


def refresh(profile: DeviceProfile, block: int, again: Timing, tolerance: float = TOLERANCE) -> str | None:
    """Why the profile no longer holds, in words, or None if it does."""
    before = only(profile.blocks[block], again.rows)
    old_s, new_s = before.forward_s + before.backward_s, again.forward_s + again.backward_s
    if old_s <= 0:
        return f"block {block} took no time at all before"
    change = new_s / old_s - 1
    if abs(change) <= tolerance:
        return None
    slower = "slower" if change > 0 else "faster"
    return f"block {block} is {abs(change):.0%} {slower} than before ({1e3 * old_s:.2f} → {1e3 * new_s:.2f} ms)"

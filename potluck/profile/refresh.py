"""Whether a profile from before still holds: a block is timed and links are tried again, and compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from potluck.profile.cells import only, step_s
from potluck.profile.network import PROCESSOR_BOUND_BYTES_S, DevicePair, Probing, Trunk
from potluck.types import DeviceProfile, LinkProfile, Timing
from potluck.units import factor_text, milliseconds

TOLERANCE = 0.15  # relative: the same device differs by less from hour to hour, as a rule
LINK_TOLERANCE = 0.3  # a brief look at a link is rougher than one at a block
_LATENCY_TIMES, _LATENCY_S = 2.0, 1e-3  # a latency has changed if it did by both


def cell_to_retime(profile: DeviceProfile, rows: int) -> int | None:
    """The block that takes longest at this row count, of those measured; None if none was."""
    measured = {
        index: only(block, rows)
        for index, block in enumerate(profile.blocks)
        if any(cell.rows == rows and cell.measured for cell in block.timings)
    }
    return max(measured, key=lambda index: step_s(measured[index]), default=None)


def refresh(profile: DeviceProfile, block: int, again: Sequence[Timing]) -> str | None:
    """Why the profile no longer holds, in words, or None if it does; the median of what was timed again counts."""
    before = only(profile.blocks[block], again[0].rows)
    old_s, new_s = step_s(before), statistics.median(map(step_s, again))
    if old_s <= 0:
        return f"block {block} took no time at all before"
    if new_s <= 0:
        return f"block {block} takes no time at all now"
    times = new_s / old_s
    if abs(times - 1) <= TOLERANCE:
        return None
    return f"block {block} is {factor_text(times, 'before')} ({milliseconds(old_s)} → {milliseconds(new_s)})"


def links_changed(
    links: Sequence[LinkProfile], found: Mapping[DevicePair, Probing], trunks: Mapping[DevicePair, Trunk]
) -> str | None:
    """Why the links from before no longer hold, in words, or None if they do.

    Where only the processor is the limit, how fast a link is says how busy the machine was, not what it carries.
    Links that share a line as fast as each was before carry less together, so who shares one counts too.
    """
    known = {(link.source, link.target): link for link in links if link.measured}
    for pair, probing in found.items():
        trunk = trunks.get(pair)
        now, line = (probing, "") if trunk is None else (trunk.probing, trunk.name)
        link = known.get(pair)
        if link is None:
            return f"{pair[0]} → {pair[1]} was not measured before"
        old = link.bandwidth_bytes_s
        fast = PROCESSOR_BOUND_BYTES_S
        if old is not None and min(old, now.bandwidth_bytes_s) < fast:
            times = min(old, fast) / min(now.bandwidth_bytes_s, fast)
            if not 1 - LINK_TOLERANCE <= times <= 1 / (1 - LINK_TOLERANCE):
                return f"{pair[0]} → {pair[1]} is {factor_text(times, 'before')}"
        low, high = sorted((link.latency_s, now.latency_s))
        if high > _LATENCY_TIMES * low and high - low > _LATENCY_S:
            return f"{pair[0]} → {pair[1]} has another latency ({milliseconds(link.latency_s)} → " + (
                f"{milliseconds(now.latency_s)})"
            )
        if link.trunk != line:
            return f"{pair[0]} → {pair[1]} shares its line with {'others than before' if line else 'nobody any more'}"
    return None

"""Whether the numbers of a profile from a file can be true: planning and simulating trust them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.errors import InputError
from potluck.types import COORDINATOR, BlockProfile, DeviceProfile, LinkProfile, Profile

_LONGEST_S = 1e7  # of anything: some months
_MOST_BYTES = 2**60  # 2**60: a million terabytes, more than any device has
_MOST_ROWS = 10_000_000  # of a cell: ten times the largest micro-batch of a plan
_SLOWEST_BYTES_S, _FASTEST_BYTES_S = 0.1, 1e15
_MOST_RESIDENT = 1000.0  # times what tensors need: holes are never so large


def check_profile(profile: Profile, blocks: int | None = None) -> None:
    """Raises, naming the key, unless every number can be true and everything fits together."""
    if not profile.devices:
        raise _wrong("devices", "none", "a profile has at least one")
    names = [d.device.name for d in profile.devices]
    for number, device in enumerate(profile.devices):
        key = f"devices[{number}]"
        if device.device.name in names[:number]:
            raise _wrong(f"{key}.device.name", repr(device.device.name), "each device appears once")
        check_device(device, len(profile.devices[0].blocks) if blocks is None else blocks, key)
    check_network(profile.links, profile.commit_s, names)


def check_device(device: DeviceProfile, blocks: int | None, key: str = "profile") -> None:
    """The same for one device; `blocks` is how many the model has, if that is known."""
    count = len(device.blocks)
    if not count or (blocks is not None and count != blocks):
        raise _wrong(f"{key}.blocks", f"{count} of them", f"the model has {blocks}" if blocks else "a model has some")
    rows = [cell.rows for cell in device.blocks[0].timings]
    for number, block in enumerate(device.blocks):
        _check_block(block, rows, f"{key}.blocks[{number}]")
    for name in ("message_s", "call_s"):
        _seconds(getattr(device, name), f"{key}.{name}")
    for name in ("idle_bytes", "code_bytes"):
        _bytes(getattr(device, name), f"{key}.{name}")
    _rate(device.copy_bytes_s, f"{key}.copy_bytes_s")


def check_network(links: Sequence[LinkProfile], commit_s: float, devices: Sequence[str]) -> None:
    """The same for links between these devices and the coordinator, and for what a commit takes."""
    _seconds(commit_s, "commit_s")
    seen = set()
    for number, link in enumerate(links):
        key = f"links[{number}]"
        for end in ("source", "target"):
            if getattr(link, end) not in (*devices, COORDINATOR):
                raise _wrong(f"{key}.{end}", repr(getattr(link, end)), "a link leads from a device to another")
        if link.source == link.target:
            raise _wrong(f"{key}.target", repr(link.target), "a link leads from a device to another")
        if (link.source, link.target) in seen:
            raise _wrong(key, f"{link.source} → {link.target}", "each direction appears once")
        seen.add((link.source, link.target))
        _rate(link.bandwidth_bytes_s, f"{key}.bandwidth_bytes_s")
        _seconds(link.latency_s, f"{key}.latency_s")


def _check_block(block: BlockProfile, rows: Sequence[int], key: str) -> None:
    if not block.timings:
        raise _wrong(f"{key}.timings", "empty", "a block has at least one")
    if [cell.rows for cell in block.timings] != list(rows):
        raise _wrong(f"{key}.timings", "other rows than block 0", "all blocks of a device have the same")
    before = 0
    for number, cell in enumerate(block.timings):
        where = f"{key}.timings[{number}]"
        if not before < cell.rows <= _MOST_ROWS:
            raise _wrong(f"{where}.rows", str(cell.rows), f"rows are above {before}, ascending, at most {_MOST_ROWS}")
        before = cell.rows
        for name in ("forward_s", "backward_s"):
            _seconds(getattr(cell, name), f"{where}.{name}")
        for name in ("kept_bytes", "working_bytes"):
            _bytes(getattr(cell, name), f"{where}.{name}")
    _seconds(block.update_s, f"{key}.update_s")
    if not 0 < block.resident <= _MOST_RESIDENT:
        raise _wrong(f"{key}.resident", f"{block.resident:g}", f"it is above 0 and at most {_MOST_RESIDENT:g}")


def _seconds(value: float, key: str) -> None:
    if not (math.isfinite(value) and 0 <= value <= _LONGEST_S):
        raise _wrong(key, f"{value:g}", f"seconds are from 0 to {_LONGEST_S:g}")


def _bytes(value: int, key: str) -> None:
    if not 0 <= value <= _MOST_BYTES:
        raise _wrong(key, f"{value:g}", f"bytes are from 0 to {_MOST_BYTES:.0e}")


def _rate(value: float | None, key: str) -> None:
    if value is not None and not _SLOWEST_BYTES_S <= value <= _FASTEST_BYTES_S:
        raise _wrong(key, f"{value:g}", f"rates are from {_SLOWEST_BYTES_S:g} to {_FASTEST_BYTES_S:g}, or null")


def _wrong(key: str, given: str, rule: str) -> InputError:
    return InputError(f"{key}: {given} cannot be, as {rule}; measure again")

"""A profile as arrays: what a device needs for any run of blocks and any number of rows, without a loop over blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potluck.types import TRUNK_ARROW, BlockProfile, DeviceProfile, Profile

Array = NDArray[np.float64]
_SUMMED = ("forward_s", "backward_s", "kept_bytes")


class DeviceTables:
    """One device: sums over blocks [0, i) at the measured row counts, and between them by straight lines.

    Below the smallest measured row count the line through the first two is followed, but never below half the first:
    fixed costs do not vanish. Above the largest, time grows in proportion.
    """

    def __init__(self, profile: DeviceProfile) -> None:
        self.profile = profile
        self.name = profile.device.name
        self.memory_bytes = profile.device.memory_bytes
        self.rows = sorted({t.rows for block in profile.blocks for t in block.timings})
        self._measured, self.working = _figures(profile.blocks, self.rows)
        self.update = _prefix([block.update_s for block in profile.blocks])
        self._resident = [block.resident for block in profile.blocks]
        self._late = {
            "late_back": np.array([block.late_back for block in profile.blocks]),
            "late_weights": np.array([block.late_weights for block in profile.blocks]),
            "late_kept": np.array([block.late_kept for block in profile.blocks]),
        }
        self._cached: dict[tuple[str, int], Array] = {}

    def forward(self, rows: int) -> Array:
        """Seconds of the forward pass of blocks [0, i), for each i."""
        return self._sums("forward_s", rows)

    def backward(self, rows: int) -> Array:
        """Seconds of the backward pass of blocks [0, i), for each i."""
        return self._sums("backward_s", rows)

    def late_back(self, rows: int) -> Array:
        """What is left of the backward pass of blocks [0, i) where weight gradients wait, for each i."""
        return self._late_sums("late_back", rows)

    def late_weights(self, rows: int) -> Array:
        """And seconds of the weight gradients then."""
        return self._late_sums("late_weights", rows)

    def late_kept(self, rows: int) -> Array:
        """Bytes that blocks [0, i) keep for weight gradients that wait, for each i."""
        found = self._cached.get(("late_kept", rows))
        if found is None:
            found = self._cached["late_kept", rows] = _prefix(np.diff(self.kept(rows)) * self._late["late_kept"])
        return found

    def can_put_off(self, blocks: tuple[int, int]) -> bool:
        """Whether some of these blocks have weight gradients that can wait."""
        return bool(self._late["late_weights"][slice(*blocks)].any())

    def _late_sums(self, what: str, rows: int) -> Array:
        found = self._cached.get((what, rows))
        if found is None:
            found = self._cached[what, rows] = _prefix(np.diff(self.backward(rows)) * self._late[what])
        return found

    def kept(self, rows: int) -> Array:
        """Bytes that blocks [0, i) keep between forward and backward, for each i."""
        return self._sums("kept_bytes", rows)

    def step_s(self, blocks: tuple[int, int], rows: int) -> float:
        """Seconds of one forward and one backward of these blocks."""
        start, stop = blocks
        forward, backward = self.forward(rows), self.backward(rows)
        return float(forward[stop] - forward[start] + backward[stop] - backward[start])

    def working_bytes(self, blocks: tuple[int, int], rows: int) -> int:
        """Most bytes any one of these blocks needs beside what it keeps."""
        found = self._cached.get(("working_bytes", rows))
        if found is None:
            found = self._cached["working_bytes", rows] = _between(self.rows, self.working, rows)
        return int(found[slice(*blocks)].max(initial=0.0))

    def resident(self, blocks: tuple[int, int]) -> float:
        """Bytes the process takes for each byte these blocks need, in the mean."""
        some = self._resident[slice(*blocks)]
        return sum(some) / max(1, len(some))

    def _sums(self, what: str, rows: int) -> Array:
        found = self._cached.get((what, rows))
        if found is None:
            found = self._cached[what, rows] = _between(self.rows, self._measured[what], rows)
        return found


class Rates(NamedTuple):
    """Some devices and the lines between them: seconds for each byte, or for each message."""

    lines: Array  # from each to each
    latency_s: Array  # likewise
    inlet: Array  # of whatever comes to each
    copy: Array  # of its processor
    message_s: Array


def ends(trunk: str) -> tuple[str, str] | None:
    """From where to where a line leads that links share; None for no line."""
    source, arrow, target = trunk.partition(TRUNK_ARROW)
    return (source, target) if arrow else None


def _one_line(trunk: str) -> str:
    """The same name for both directions of a line that links share."""
    found = ends(trunk)
    return TRUNK_ARROW.join(sorted(found)) if found else trunk


class Tables:
    """All devices of a profile, and the links between them."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.devices = {d.device.name: DeviceTables(d) for d in profile.devices}
        self._links = {(link.source, link.target): link for link in profile.links}
        half = profile.medium == "half"  # then what goes one way over a line waits for what comes the other way
        self._trunks = {
            (link.source, link.target): _one_line(link.trunk) if half else link.trunk
            for link in profile.links if link.trunk
        }  # fmt: skip

    def transfer_s(self, source: str, target: str, size_bytes: float) -> float:
        """Seconds for which a message of this size occupies the way from one device to another."""
        link = self._links.get((source, target))
        return 0.0 if link is None or link.bandwidth_bytes_s is None else size_bytes / link.bandwidth_bytes_s

    def latency_s(self, source: str, target: str) -> float:
        """Seconds a message is on the way beside that."""
        link = self._links.get((source, target))
        return 0.0 if link is None else link.latency_s

    def commit_s(self, devices: int) -> float:
        """From the last report of so many devices to the verdict; a lone device decides by itself."""
        return self.profile.commit_s if devices > 1 else 0.0

    def trunk(self, source: str, target: str) -> str:
        """The line that this way shares with others; none, if empty."""
        return self._trunks.get((source, target), "")

    def trunk_loads(self, parcels: Iterable[tuple[str, str, float]]) -> dict[str, float]:
        """Seconds for which each shared line is taken by messages from, to and of so many bytes."""
        loads: dict[str, float] = {}
        for source, target, size in parcels if self.has_trunks else ():
            if name := self.trunk(source, target):
                loads[name] = loads.get(name, 0.0) + self.transfer_s(source, target, size)
        return loads

    @property
    def has_trunks(self) -> bool:
        """Whether any links share a line."""
        return bool(self._trunks)

    def outlet_s(self, source: str, size_bytes: float) -> float:
        """Seconds for which what leaves a device takes its own line, wherever it goes: as fast as its fastest."""
        return size_bytes / self._outlets[source] if source in self._outlets else 0.0

    def leaving_s(self, source: str, target: str, size_bytes: float) -> float:
        """Seconds for which a message takes its sender's line: a slow line further on, that others share, is not it.

        On half-duplex and shared media a message takes its whole way at once.
        """
        if self.profile.medium == "full" and self.trunk(source, target):
            return self.outlet_s(source, size_bytes)
        return self.transfer_s(source, target, size_bytes)

    def inlet_s(self, target: str, size_bytes: float) -> float:
        """Seconds for which what comes to a device takes its line, wherever it comes from: as fast as its fastest."""
        return size_bytes / self._inlets[target] if target in self._inlets else 0.0

    def rates(self, devices: Sequence[str]) -> Rates:
        """What bytes and messages cost these devices among each other."""
        places, everybody = self._everybody
        chosen = [places[device] for device in devices]
        pairs = np.ix_(chosen, chosen)
        return Rates(
            everybody.lines[pairs], everybody.latency_s[pairs], everybody.inlet[chosen], everybody.copy[chosen],
            everybody.message_s[chosen],
        )  # fmt: skip

    @cached_property
    def _everybody(self) -> tuple[dict[str, int], Rates]:
        names = list(self.devices)
        profiles = [self.devices[name].profile for name in names]
        lines = np.array([[0.0 if a == b else self.transfer_s(a, b, 1.0) for b in names] for a in names])
        late = np.array([[0.0 if a == b else self.latency_s(a, b) for b in names] for a in names])
        copy = [1.0 / p.copy_bytes_s if p.copy_bytes_s else 0.0 for p in profiles]
        inlet = [self.inlet_s(name, 1.0) for name in names]
        found = Rates(lines, late, np.array(inlet), np.array(copy), np.array([p.message_s for p in profiles]))
        return {name: place for place, name in enumerate(names)}, found

    @cached_property
    def _inlets(self) -> dict[str, float]:
        return _fastest((link.target, link.bandwidth_bytes_s) for link in self.profile.links)

    @cached_property
    def _outlets(self) -> dict[str, float]:
        return _fastest((link.source, link.bandwidth_bytes_s) for link in self.profile.links)

    @cached_property
    def block_count(self) -> int:
        """Blocks of the model."""
        return len(self.profile.devices[0].blocks)


def _fastest(rates: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Device → bytes per second of the fastest of its links; who has an unlimited one has no limit."""
    found: dict[str, list[float | None]] = {}
    for device, rate in rates:
        found.setdefault(device, []).append(rate)
    return {d: max(r for r in rates if r) for d, rates in found.items() if all(rates)}


def _figures(blocks: Sequence[BlockProfile], rows: list[int]) -> tuple[dict[str, Array], Array]:
    """Sums over blocks [0, i) of what was measured at each row count, and working bytes of each block."""
    if all([t.rows for t in block.timings] == rows for block in blocks):  # ten times as fast as asking for each
        cells = np.array(
            [[(t.forward_s, t.backward_s, t.kept_bytes, t.working_bytes) for t in b.timings] for b in blocks],
            dtype=np.float64,
        )
    else:
        cells = np.array([[[_at(b, r, what) for what in (*_SUMMED, "working_bytes")] for r in rows] for b in blocks])
    sums = np.concatenate([np.zeros((1, len(rows), 3)), np.cumsum(cells[:, :, :3], axis=0)])
    return {what: sums[:, :, place].T.copy() for place, what in enumerate(_SUMMED)}, cells[:, :, 3].T.copy()


def _at(block: BlockProfile, rows: int, what: str) -> float:
    """A figure of a block at a row count that this block may not have been measured at."""
    cells = block.timings
    for cell in cells:
        if cell.rows == rows:
            return float(getattr(cell, what))
    values = np.array([[float(getattr(cell, what))] for cell in cells])
    return float(_between([cell.rows for cell in cells], values, rows)[0])


def _between(known: list[int], values: Array, rows: int) -> Array:
    """Values at a row count, from those at known ones (ascending), by straight lines."""
    place = bisect_left(known, rows)
    found: Array
    if place < len(known) and known[place] == rows:
        found = values[place]
    elif place == len(known):  # beyond the largest
        found = values[-1] * (rows / known[-1])
    elif place > 0:
        low, high = known[place - 1], known[place]
        part = (rows - low) / (high - low)
        found = values[place - 1] * (1 - part) + values[place] * part
    elif len(known) == 1:
        found = values[0] * max(0.5, rows / known[0])
    else:
        slope = (values[1] - values[0]) / (known[1] - known[0])
        found = np.maximum(values[0] - slope * (known[0] - rows), values[0] * 0.5 * rows / known[0])
    return found


def _prefix(values: Sequence[float] | Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])

"""What the proxy does to a stream, and where in it: pure, and the same for the same seed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from potluck import units
from potluck.errors import InputError


@dataclasses.dataclass(frozen=True)
class Faults:
    """What is done to every connection, in both directions. `every`: mean number of bytes from one to the next."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # up to so much more, evenly; nothing overtakes
    stall_every: float | None = None
    stall_s: float = 1.0
    corrupt_every: float | None = None  # one bit of a byte
    truncate_every: float | None = None  # the rest of this direction is lost; its receiver sees the end of the stream
    reset_every: float | None = None
    hold: bool = False  # nothing passes until this changes


class Fate:
    """Where in one direction of a connection the faults of one kind fall, however its bytes happen to be cut up."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 - faults, not secrets
        self._every: float | None = None
        self._left = 0  # bytes that pass before the next one

    def strikes(self, every: float | None, size: int) -> list[int]:
        """The offsets that are struck in the next `size` bytes."""
        if every != self._every:
            self._every = every
            self._draw()
        if every is None:
            return []
        found, start = [], 0
        while self._left < size - start:
            start += self._left
            found.append(start)
            start += 1
            self._draw()
        self._left -= size - start
        return found

    def _draw(self) -> None:
        self._left = int(self._random.expovariate(1 / self._every)) if self._every else 0


class Fates:
    """Everything that happens to one direction of a connection; `count` is told of each fault."""

    def __init__(self, seed: str, count: Callable[[str, int], None]) -> None:
        self._count = count
        self._fates = {kind: Fate(f"{seed}/{kind}") for kind in ("corrupt", "truncate", "reset", "stall")}
        self._jitter = random.Random(f"{seed}/jitter")  # noqa: S311 - faults, not secrets

    def strike(self, faults: Faults, data: bytearray) -> tuple[bytes, str]:
        """What goes on of some bytes, and what happens after them: "reset", "truncate" or nothing."""
        for offset in self._strikes("corrupt", faults.corrupt_every, len(data)):
            data[offset] ^= 1 << (offset % 8)
        for kind, every in (("reset", faults.reset_every), ("truncate", faults.truncate_every)):
            cuts = self._strikes(kind, every, len(data))
            if cuts:
                return bytes(data[: cuts[0]]), kind
        return bytes(data), ""

    def wait_s(self, faults: Faults, size: int) -> float:
        """How long so many bytes are kept."""
        stalls = self._strikes("stall", faults.stall_every, size)
        return faults.delay_s + self._jitter.uniform(0, faults.jitter_s) + faults.stall_s * len(stalls)

    def _strikes(self, kind: str, every: float | None, size: int) -> list[int]:
        found = self._fates[kind].strikes(every, size)
        if found:
            self._count(kind, len(found))
        return found


def _every(text: str) -> float | None:
    size = None if text == "none" else units.size_bytes(text)
    if size == 0:
        raise InputError("0 bytes apart; give a size like 1MB, or none")
    return size


def _time(text: str) -> float:
    return 0.0 if text in ("0", "none") else units.duration_s(text)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise InputError(f"{text!r}; give yes or no")
    return text == "yes"


SETTINGS: dict[str, tuple[str, Callable[[str], float | bool | None]]] = {
    "delay": ("delay_s", _time),
    "jitter": ("jitter_s", _time),
    "stall": ("stall_s", _time),
    "stall-every": ("stall_every", _every),
    "corrupt-every": ("corrupt_every", _every),
    "truncate-every": ("truncate_every", _every),
    "reset-every": ("reset_every", _every),
    "hold": ("hold", _yes),
}


def read_change(line: str) -> dict[str, float | bool | None]:
    """The change of faults that a line like "delay 50ms" asks for."""
    key, _, value = line.strip().partition(" ")
    if key not in SETTINGS:
        raise InputError(f"{line.strip()!r}: give one of {', '.join(SETTINGS)}, and a value")
    field, reader = SETTINGS[key]
    try:
        return {field: reader(value.strip())}
    except InputError as error:
        raise InputError(f"{key}: {error}") from None

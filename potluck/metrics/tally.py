"""How far several devices are, in one line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 2.0  # between two lines: who waits sees that it goes on


class Tally:
    """Told how far each device is; says how far all of them are, not too often."""

    def __init__(self, say: Callable[[str], None], every_s: float = EVERY_S) -> None:
        self._say, self._every_s = say, every_s
        self._state: dict[str, tuple[int, int]] = {}
        self._last_s = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """A device, or the links, are so far."""
        self._state[what] = (done, total)
        now = time.monotonic()
        if now - self._last_s >= self._every_s:
            self._last_s = now
            self._say(
                "measuring: " + " · ".join(f"{name} {done}/{total}" for name, (done, total) in self._state.items())
            )

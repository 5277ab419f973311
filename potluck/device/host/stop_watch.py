"""Where the time of a device goes: seconds by what it did, or waited for."""

from __future__ import annotations

import time


class StopWatch:
    """Every moment belongs to the kind of the lap that ends after it."""

    def __init__(self) -> None:
        self._spent_s: dict[str, float] = {}
        self._mark = time.perf_counter()

    def lap(self, kind: str) -> None:
        """What happened since the last lap was of this kind."""
        now = time.perf_counter()
        self._spent_s[kind] = self._spent_s.get(kind, 0.0) + now - self._mark
        self._mark = now

    def take(self) -> dict[str, float]:
        """Seconds by kind since the last call."""
        spent, self._spent_s = self._spent_s, {}
        return spent

"""Devices whose pace changes while they train: slow is not lost. Pure: seconds of each round come in.

What counts is every one of the last few rounds against the usual of the first ones under a plan, so that one round that
somebody disturbed changes nothing. After each change it is twice as long before the next one counts: a device that
wavers does not make the plan waver.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

WINDOW = 6  # rounds
_WARM_UP = 2  # of a plan's first rounds, which fill caches and queues
_CHANGED = 1.3  # times as slow, or as fast
_QUIET = 12  # rounds after a change before the next one counts, at first


class Drift:
    """The pace of every device under one plan after the other."""

    def __init__(self) -> None:
        self._quiet = self._pause = _QUIET
        self.adopted()

    def adopted(self) -> None:
        """Another plan is in force: what was usual before says nothing."""
        self._seen = 0
        self._recent: deque[Mapping[str, float]] = deque(maxlen=WINDOW)
        self._usual: dict[str, float] | None = None

    def see(self, busy_s: Mapping[str, float]) -> dict[str, float]:
        """Devices that take longer than they did, or less long, and by what factor; empty while nothing has changed."""
        self._seen += 1
        self._pause = max(0, self._pause - 1)
        if self._seen <= _WARM_UP:
            return {}
        self._recent.append(busy_s)
        if len(self._recent) < WINDOW:
            return {}
        now = {device: statistics.median(r.get(device, 0.0) for r in self._recent) for device in busy_s}
        if self._usual is None:
            self._usual = now
        changed = {d: now[d] / usual for d, usual in self._usual.items() if self._has_changed(d, usual)}
        if not changed or self._pause:
            return {}
        self._usual = now
        self._quiet = self._pause = 2 * self._quiet
        return changed

    def _has_changed(self, device: str, usual: float) -> bool:
        seconds = [r.get(device, 0.0) for r in self._recent]
        return usual > 0 and (min(seconds) > usual * _CHANGED or 0 < max(seconds) < usual / _CHANGED)

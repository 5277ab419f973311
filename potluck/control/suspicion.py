"""Is a device that says nothing gone, or only slow? Judged by how long it was silent before. Pure: no clock is read.

On a calm network it is suspected after less than three seconds, which is more than the two that a process may be held
up. Where there were longer silences lately, it is given as much longer.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, NamedTuple

from potluck.wire.channel import SILENT

# Of silence on a calm network, where a device is heard twice a second: more than the two seconds for which a process
# may be held up, and with the time between two looks still less than three.
PATIENCE_S = 2.7
_USUAL_S = 0.6  # between two signs of life, on a calm network
_MEMORY_S = 120.0  # of silences that count
_LENIENCE = 2.0  # for a second that a silence was longer than usual
_LONGEST_S = 12.0


class Suspected(NamedTuple):
    """What to think of a device, and why."""

    kind: Literal["alive", "slow", "suspected"]
    reason: str


class Suspicion:
    """The signs of life of one device."""

    def __init__(self, now_s: float = math.inf, patience_s: float = PATIENCE_S) -> None:
        """Nothing counts before it was first heard; `patience_s` is how long it may be silent on a calm network."""
        self._heard_s, self._patience_s = now_s, patience_s
        self._gaps: deque[tuple[float, float]] = deque()  # (when it ended, how long it was), longest first

    def heard(self, now_s: float) -> None:
        """It said something."""
        gap, self._heard_s = max(0.0, now_s - self._heard_s), now_s
        while self._gaps and self._gaps[-1][1] <= gap:
            self._gaps.pop()
        self._gaps.append((now_s, gap))

    def forgive(self, now_s: float) -> None:
        """Whoever listens was held up itself: the silence says nothing."""
        self._heard_s = now_s

    def judge(self, now_s: float) -> Suspected:
        """What its silence means."""
        silence = now_s - self._heard_s
        allowed = self.allowed_s(now_s)
        if silence > allowed:
            return Suspected("suspected", f"{SILENT} from it for {silence:.1f} s")
        if silence > max(2 * _USUAL_S, allowed / 2):
            return Suspected("slow", f"silent for {silence:.1f} s; {allowed:.1f} s are allowed")
        return Suspected("alive", "heard a moment ago")

    def allowed_s(self, now_s: float) -> float:
        """How long it may be silent, by the longest silence of the last while."""
        while self._gaps and self._gaps[0][0] < now_s - _MEMORY_S:
            self._gaps.popleft()
        longest = self._gaps[0][1] if self._gaps else 0.0
        return min(_LONGEST_S, self._patience_s + _LENIENCE * max(0.0, longest - _USUAL_S))

    def gone(self, now_s: float) -> str | None:
        """Why it is taken for gone, if it is."""
        kind, reason = self.judge(now_s)
        return reason if kind == "suspected" else None

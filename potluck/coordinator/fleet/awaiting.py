"""Who is awaited while devices join, in one line that changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from potluck.units import names_text

_NAMES = 8  # that fit into a line
_SOON_S, _STEP_S = 60.0, 10.0  # the time left is said in minutes, in the last one in steps of so many seconds


def waiting_text(here: Sequence[str], missing: Sequence[str] | int, until: str, left_s: float) -> str:
    """Who is here, who is missing, by name or only how many, and until when they are awaited."""
    more = missing if isinstance(missing, int) else len(missing)
    count = len(here) + more
    text = f"{len(here)} of {count} device{'s' * (count != 1)}" + (f": {names_text(here, _NAMES)}" if here else "")
    if not more:
        return text
    whom = f"{more} more" if isinstance(missing, int) else names_text(missing, _NAMES)
    return f"{text}; waiting for {whom}, until {until} ({_left(left_s)} left)"


def _left(seconds: float) -> str:
    """Rounded up and in steps: every text is a line where nothing can be overwritten."""
    if seconds > _SOON_S:
        return f"{math.ceil(seconds / 60)} min"
    return f"{max(1, math.ceil(seconds / _STEP_S)) * _STEP_S:.0f} s"


class Awaiting:
    """Says it, and again when it has changed."""

    def __init__(self, say: Callable[[str], None], timeout_s: float) -> None:
        self._say, self._said = say, ""
        self.deadline = time.monotonic() + timeout_s
        self._until = time.strftime("%H:%M:%S", time.localtime(time.time() + timeout_s))  # for people alone

    def look(self, here: Sequence[str], missing: Sequence[str] | int) -> None:
        text = waiting_text(here, missing, self._until, self.deadline - time.monotonic())
        if text != self._said:
            self._said = text
            self._say(text)

"""A time limit that is known from the start: what would not fit any more is left out, and that is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

QUICK_S = 15 * 60.0  # of every --quick
T = TypeVar("T")
MARGIN = 1.1  # of what a piece is expected to take: pieces differ


class TimeLimit:
    """Seconds for several pieces, from now on.

    Each piece comes with what it usually takes. How much longer everything takes on this machine follows from the
    pieces before. Without a limit everything fits.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.left_out = seconds, list[str]()
        self._clock, self._began = clock, clock()
        self._usual_s = self._taken_s = 0.0  # of all pieces so far

    def expected_s(self, usual_s: float) -> float:
        """What a piece is expected to take here."""
        return usual_s * self._taken_s / self._usual_s if self._usual_s else usual_s

    def allows(self, usual_s: float, exactly_s: float = 0.0) -> bool:
        """Whether such a piece fits, and after it what takes exactly so long on every machine."""
        if self.seconds is None:
            return True
        spent_s = self._clock() - self._began
        return spent_s + MARGIN * self.expected_s(usual_s) + exactly_s <= self.seconds

    def fits(self, name: str, usual_s: float, exactly_s: float = 0.0) -> bool:
        """The same, and it is left out where it does not."""
        if self.allows(usual_s, exactly_s):
            return True
        self.left_out.append(name)
        return False

    @contextmanager
    def piece(self, usual_s: float, exactly_s: float = 0.0) -> Iterator[None]:
        """Takes the time of a piece: later ones are expected to be as slow. One that fails says nothing of them."""
        began = self._clock()
        yield
        self._taken_s += max(0.0, self._clock() - began - exactly_s)
        self._usual_s += usual_s

    def within(self, name: str, usual_s: float, piece: Callable[[], T], exactly_s: float = 0.0) -> T | None:
        """What a piece gives; None where it is left out."""
        if not self.fits(name, usual_s, exactly_s):
            return None
        with self.piece(usual_s, exactly_s):
            return piece()

    @property
    def figures(self) -> dict[str, Any]:
        """As results have it."""
        return {"time_limit_s": self.seconds, "left_out": self.left_out}

    @property
    def words(self) -> str:
        """One line on what was left out; nothing where nothing was."""
        if not self.left_out or self.seconds is None:
            return ""
        return f"left out, as {self.seconds / 60:.0f} minutes are not enough: {', '.join(self.left_out)}"

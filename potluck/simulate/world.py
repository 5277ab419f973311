"""A world for the state machines: a virtual clock, lines that are slow, break and stall, and a disk that forgets.

One seed is one run; nothing here knows what the machines decide.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from potluck.types import Plan

_FASTEST_S, _SLOWEST_S = 0.001, 0.05


class Violation(Exception):
    """A promise was broken."""


@dataclass
class Disk:
    """What a coordinator writes. Until it is flushed, a crash takes it back."""

    ledger: list[int] = field(default_factory=list)  # rounds
    flushed_rounds: int = 0
    plans: dict[int, Plan] = field(default_factory=dict)
    saved: int = 0  # round of the newest checkpoint

    def flush_ledger(self) -> None:
        """Nothing of the ledger is lost from now on."""
        self.flushed_rounds = len(self.ledger)

    def crash(self) -> None:
        """What was not flushed was never written."""
        del self.ledger[self.flushed_rounds :]


class World:
    """The clock, the lines and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.now = 0.0
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._busy_until: dict[tuple[str, str], float] = {}
        self._broken: dict[tuple[str, str], float] = {}  # pair → until when nothing passes
        self.over = False
        self.history: list[str] = []

    def say(self, text: str) -> None:
        """Keeps what happened, to explain a violation."""
        self.history.append(f"{self.now:8.3f} {text}")

    def after(self, seconds: float, deed: Callable[[], None]) -> None:
        """Does something later."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), deed))

    def carry(self, source: str, target: str, deliver: Callable[[], None], seconds: float = 0.0) -> None:
        """Brings something from one to another, in order; nothing passes a line that is broken when it would arrive."""
        pair = (source, target)
        delay = seconds + self.random.uniform(_FASTEST_S, _SLOWEST_S)
        if self.random.random() < 0.01:
            delay += self.random.uniform(0.2, 1.5)  # a stall
        arrival = max(self.now + delay, self._busy_until.get(pair, 0.0))
        self._busy_until[pair] = arrival
        self.after(arrival - self.now, lambda: deliver() if self.passes(source, target) else None)

    def passes(self, source: str, target: str) -> bool:
        """Whether the line is whole."""
        return all(self._broken.get(pair, 0.0) <= self.now for pair in ((source, target), (source, "*"), ("*", target)))

    def cut(self, source: str, target: str, seconds: float) -> None:
        """Nothing passes for some time; "*" stands for everybody."""
        pair = (source, target)
        self._broken[pair] = max(self._broken.get(pair, 0.0), self.now + seconds)

    def run(self, until_s: float) -> None:
        """Lets time pass until everything is over, or the time is."""
        while self._queue and not self.over:
            self.now, _, deed = heapq.heappop(self._queue)
            if self.now > until_s:
                return
            deed()

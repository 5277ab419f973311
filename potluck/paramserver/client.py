"""A worker's side: told of every step, it says go on, push, or wait. It knows neither tensors nor sockets. Pure."""

from __future__ import annotations

import enum
import math

from potluck.paramserver.applied_pushes import MOST_KEPT, Push
from potluck.types import Pace

# After a pull, whose losses are taken for those of the weights that it pulled: they are not far from them yet.
FRESH_STEPS = 10


class Next(enum.Enum):
    """What to do after a step."""

    GO_ON = "go on"
    PUSH = "push"
    WAIT = "wait"  # until something was heard


class Client:
    """When to push, what to say with it, and which pushes to keep until a restart of the server cannot lose them."""

    def __init__(self, worker: str, incarnation: int, pace: Pace, *, waits: bool, version: int, now_s: float) -> None:
        """`waits`: after a push it stands still until it is let go; else it trains on meanwhile."""
        self._worker, self.incarnation, self._waits = worker, incarnation, waits
        self.pace, self.version = pace, version  # when it pushes next, and the weights that it went on from
        self._pushed_s = now_s
        self.kept: list[Push] = []  # not known to be in a snapshot, oldest first
        self.overhead_s = 0.0  # of the last push and pull
        self._sequence = self._durable = 0
        self._under_way_s: float | None = None  # since when a push has no answer
        self._fresh, self._fresh_loss = 0, 0.0  # steps right after a pull
        self._begin()

    def _begin(self) -> None:
        self._steps, self._samples, self._loss = 0, 0, 0.0

    def repace(self, pace: Pace) -> None:
        """Another pace, unless a later one is known."""
        if pace.number >= self.pace.number:
            self.pace = pace

    @property
    def under_way(self) -> Push | None:
        """The push that has no answer yet."""
        return self.kept[-1] if self._under_way_s is not None and self.kept else None

    def drop_news(self) -> None:
        """What it trained since its last push is not to be pushed."""
        self._begin()

    @property
    def has_news(self) -> bool:
        """Whether it trained since its last push."""
        return bool(self._steps)

    @property
    def may_push(self) -> bool:
        """Whether a push would not be one too many."""
        return self._under_way_s is None and len(self.kept) < MOST_KEPT

    @property
    def stands_still(self) -> bool:
        """Whether it must not train."""
        return self._waits and self._under_way_s is not None

    def step_done(self, samples: int, loss: float, now_s: float, count: int = 1) -> Next:
        """A step is over, or a few of them, with so many samples and this loss each."""
        self._steps += count
        self._samples += count * samples
        self._loss += count * loss
        if self._under_way_s is None and self._fresh < FRESH_STEPS:
            self._fresh += count
            self._fresh_loss += count * loss
        return self.next(now_s)

    def next(self, now_s: float) -> Next:
        if self.stands_still:
            return Next.WAIT
        pace = self.pace
        due = (pace.steps is not None and self._steps >= pace.steps) or (
            pace.seconds is not None and now_s - self._pushed_s >= pace.seconds * (1 - 1e-9)
        )
        if not due or not self._steps or self._under_way_s is not None:
            return Next.GO_ON
        if len(self.kept) >= MOST_KEPT:  # trains on, unless all it does is wait anyway
            return Next.WAIT if self._waits else Next.GO_ON
        return Next.PUSH

    def push(self, now_s: float) -> Push:
        """What goes with the difference since the last push."""
        self._sequence += 1
        loss = self._loss / self._steps if self._steps else math.nan
        known = loss if math.isfinite(loss) else None
        made = Push(
            worker=self._worker, incarnation=self.incarnation, sequence=self._sequence, base=self.version,
            steps=self._steps, samples=self._samples, loss=known, pulled_loss=self._pulled_loss(),
        )  # fmt: skip
        self.kept.append(made)
        self._under_way_s = self._pushed_s = now_s
        self._begin()
        return made

    def _pulled_loss(self) -> float | None:
        """What the weights that it pulled last came to on its samples, before it had changed them much."""
        loss = self._fresh_loss / self._fresh if self._fresh else math.nan
        return loss if math.isfinite(loss) else None

    def answered(self, sequence: int, version: int, durable_up_to: int, pace: Pace | None, now_s: float) -> bool:
        """A push was applied, and the newest weights are here; whether that is the push under way."""
        self.durable(durable_up_to)
        if sequence != self._sequence or self._under_way_s is None:
            return False
        self.overhead_s = now_s - self._under_way_s
        self._under_way_s, self.version = None, version
        self._fresh, self._fresh_loss = 0, 0.0
        self._forget()
        if pace is not None:
            self.repace(pace)
        return True

    def durable(self, up_to: int) -> None:
        """Pushes that a restart of the server cannot lose any more."""
        self._durable = max(self._durable, up_to)
        self._forget()

    def _forget(self) -> None:
        """The push under way is kept whatever happens: its answer may be lost, and then it is pushed again."""
        open_one = self._sequence if self._under_way_s is not None else None
        self.kept = [p for p in self.kept if p.sequence > self._durable or p.sequence == open_one]

    def server_back(self, seen: int, durable_up_to: int) -> tuple[Push, ...] | None:
        """The server has restarted, with pushes up to this one: those to be pushed again, oldest first. Nobody tells
        again what was durable before: who may not push before that would wait for ever.

        One without an answer is among them even if it counts: it is answered then. None where one is missing that is
        not kept any more: then the worker has to enter anew.
        """
        self.durable(durable_up_to)
        again = tuple(push for push in self.kept if push.sequence > seen)
        oldest = again[0].sequence if again else self._sequence + 1
        if oldest != seen + 1:
            return None
        return again or (() if self.under_way is None else (self.under_way,))

    def go_on(self, pace: Pace, now_s: float, *, waits: bool) -> None:
        """By the policy of a server that has restarted; the time that it was away is no overhead."""
        self.pace, self._waits = pace, waits
        if self._under_way_s is not None:
            self._under_way_s = now_s

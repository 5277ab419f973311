"""Which pushes the server has applied, so that each counts once and only once, whatever happens on the way. Pure.

A worker numbers its pushes from 1 in each of its incarnations. What was applied is forgotten again if the server
restarts from a snapshot of before: so a worker keeps what it pushed until a snapshot has it, and pushes it once more.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from potluck.types import Value

PushJudgement = Literal["apply", "known", "early", "fenced"]
MOST_KEPT = 2  # pushes that a worker keeps; before it makes another, the oldest must be in a snapshot


class Push(Value, frozen=True, kw_only=True):
    """What a worker says with its difference."""

    worker: str
    incarnation: int
    sequence: int
    base: int  # version of the weights that it started from
    steps: int
    samples: int
    loss: float | None  # mean over the steps; None where that is not finite
    pulled_loss: float | None = None  # over the first of them, so nearly that of the weights that it pulled


class Entry(Value, frozen=True, kw_only=True):
    """A line of the ledger: a push that was applied, or that was left out and why."""

    version: int  # of the weights with it
    push: Push
    scale: float
    skipped: str = ""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """The newest push of a worker."""

    incarnation: int
    sequence: int


class Page(Value, frozen=True, kw_only=True):
    """What goes with a snapshot of the weights."""

    version: int
    seen: dict[str, Seen]


class Book:
    """The server's memory of pushes."""

    def __init__(self, page: Page | None = None) -> None:
        """From a snapshot on; what was applied after it is to be pushed again."""
        self.version = page.version if page else 0
        self._seen = dict(page.seen) if page else {}
        self._durable = dict(self._seen)
        self._durable_version = self.version
        self._lagging: set[str] = set()  # workers that may not push again before there is a snapshot

    def page(self) -> Page:
        """What a snapshot of the weights as they are has in it."""
        return Page(version=self.version, seen=dict(self._seen))

    def enter(self, worker: str, incarnation: int) -> None:
        """A worker begins; from now on its earlier incarnations are refused."""
        known = self._seen.get(worker)
        if known is None or known.incarnation < incarnation:
            self._seen[worker] = Seen(incarnation, 0)
            self._lagging.discard(worker)

    def judge(self, push: Push) -> PushJudgement:
        """What to do with a push: apply it, answer as if (it is known already), wait for an earlier one, or refuse."""
        known = self._seen.get(push.worker)
        if known is None or push.incarnation != known.incarnation:
            return "fenced"
        if push.sequence <= known.sequence:
            return "known"
        return "apply" if push.sequence == known.sequence + 1 else "early"

    def entry(self, push: Push, scale: float, skipped: str = "") -> Entry:
        """The line of the ledger for the next push. One that is skipped, as it would do harm, has a line too, and is
        not to be pushed again."""
        if self.judge(push) != "apply":
            raise ValueError(f"push {push.sequence} of {push.worker} is not the next one")
        return Entry(version=self.version + 1, push=push, scale=scale, skipped=skipped)

    def apply(self, entry: Entry) -> None:
        """Notes a push whose line is in the ledger."""
        push = entry.push
        self._seen[push.worker] = Seen(push.incarnation, push.sequence)
        self._look_at(push.worker)
        self.version = entry.version

    def seen(self, worker: str) -> Seen | None:
        return self._seen.get(worker)

    def staleness(self, push: Push) -> int:
        """Pushes applied since the weights that a worker started from."""
        return max(0, self.version - push.base)

    def saved(self, page: Page) -> None:
        """A snapshot is on disk."""
        if page.version >= self._durable_version:
            self._durable, self._durable_version = dict(page.seen), page.version
            for worker in tuple(self._lagging):
                self._look_at(worker)

    def durable_up_to(self, worker: str) -> int:
        """The newest push of a worker, of its present incarnation, that a restart does not lose."""
        known, durable = self._seen.get(worker), self._durable.get(worker)
        if known is None or durable is None or durable.incarnation != known.incarnation:
            return 0
        return durable.sequence

    @property
    def is_durable(self) -> bool:
        """Whether a restart would lose nothing."""
        return self._durable_version == self.version and self._durable == self._seen

    @property
    def lags(self) -> bool:
        """Whether somebody may not push again before there is a snapshot."""
        return bool(self._lagging)

    def holds_up(self, worker: str) -> bool:
        """Whether a worker may not push again before there is a snapshot."""
        return worker in self._lagging

    def _look_at(self, worker: str) -> None:
        if self._seen[worker].sequence - self.durable_up_to(worker) >= MOST_KEPT:
            self._lagging.add(worker)
        else:
            self._lagging.discard(worker)


def audit(entries: list[Entry]) -> list[str]:
    """What is wrong with a ledger: nothing, if every push of every incarnation is there once and in order."""
    wrong = []
    last: dict[tuple[str, int], int] = {}
    for number, entry in enumerate(entries, start=1):
        push = entry.push
        key = push.worker, push.incarnation
        if entry.version != number:
            wrong.append(f"version {entry.version} where {number} is due")
        if push.sequence != last.get(key, 0) + 1:
            wrong.append(f"push {push.sequence} of {push.worker} follows {last.get(key, 0)}")
        last[key] = push.sequence
    return wrong


def missing_and_repeated(entries: list[Entry]) -> tuple[int, int]:
    """How many pushes a ledger lacks, and how many it has more than once."""
    made = [(e.push.worker, e.push.incarnation, e.push.sequence) for e in entries]
    newest: dict[tuple[str, int], int] = {}
    for worker, incarnation, sequence in made:
        newest[worker, incarnation] = max(sequence, newest.get((worker, incarnation), 0))
    return sum(newest.values()) - len(set(made)), len(made) - len(set(made))


def refusal(push: Push, status: str) -> str:
    """Why a push is not taken that was judged so, and what to do."""
    if status == "early":
        return f"push {push.sequence} of {push.worker} came before the one before it; push that one again"
    return f"this {push.worker} was replaced by a later one, or is not known; join again"

"""What the ledger of a parameter server says: a line for every worker that entered and every push. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from potluck.paramserver.applied_pushes import Entry, Page, Seen
from potluck.types import Value


class Entered(Value, frozen=True, kw_only=True, tag="entered"):
    """A worker began; its earlier incarnations are refused from here on."""

    worker: str
    incarnation: int
    samples: int


class Pushed(Value, frozen=True, kw_only=True, tag="pushed"):
    """A push was applied, or skipped."""

    entry: Entry


PushLine = Entered | Pushed


class PushLedger(Protocol):
    """Where a server writes its lines; `coordinator/run_folder/push_log.py` is the file."""

    page: Page  # what was known when it was opened
    samples: dict[str, int]  # of every worker that ever entered

    def append(self, line: PushLine) -> None:
        """Adds a line, whole or not at all; that a worker entered is on disk when this returns."""

    def sync(self) -> None:
        """From here on nothing so far is lost in a power cut."""

    def close(self) -> None:
        """Closes it."""


def page_of(lines: Sequence[PushLine]) -> Page:
    """What a server that has seen these lines knows."""
    seen: dict[str, Seen] = {}
    version = 0
    for line in lines:
        if isinstance(line, Entered):
            seen[line.worker] = Seen(line.incarnation, 0)
        else:
            push = line.entry.push
            seen[push.worker] = Seen(push.incarnation, push.sequence)
            version = line.entry.version
    return Page(version=version, seen=seen)


def counts_after(line: PushLine) -> int:
    """After which version a line counts: entering is kept whenever it happened, so that nobody is let in twice."""
    return line.entry.version if isinstance(line, Pushed) else 0

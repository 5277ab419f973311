"""Which display fits where standard error goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from potluck.cli.display.lines import LineDisplay
from potluck.metrics.records import Record


class Display(Protocol):
    """A watcher of a run that is also told what is going on before and after it."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def note(self, text: str) -> None:
        """Says something about the run."""

    def announce(self, text: str) -> None:
        """Says something that the user may want to copy: it stays on the screen."""

    def judged_by(self, metric: str) -> None:
        """Says what decides which evaluation is the best."""

    def stopping(self) -> None:
        """Says that the run is about to stop; called from a signal handler."""

    def catch_up(self, past: Sequence[tuple[Record, float]]) -> None:
        """Takes in records from before anybody looked, each with when it was written, on the monotonic clock."""

    def record(self, record: Record, now_s: float | None = None) -> None:
        """Called with every record; `now_s` is when it was written, if not just now."""


def open_display(title: str, first_note: str) -> Display:
    """A live picture in a terminal that can draw one, plain lines elsewhere. Both on standard error.

    Where lines stay, the first note is left out: if the input is wrong, the only line is the one that says so.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return LineDisplay(sys.stderr)
    from rich.console import Console

    from potluck.cli.display.live import LiveDisplay

    return LiveDisplay(Console(stderr=True), title, first_note)

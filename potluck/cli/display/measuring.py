"""How far measuring is: a bar per device in a terminal, a plain line now and then elsewhere. On standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Protocol, TextIO

from potluck.metrics.tally import Tally


class MeasureDisplay(Protocol):
    """Told what happens while devices measure."""

    def note(self, text: str) -> None:
        """Says something worth keeping."""

    def progress(self, what: str, done: int, total: int) -> None:
        """A device, or the links, are so far."""


@contextlib.contextmanager
def measure_display() -> Iterator[MeasureDisplay]:
    """The display that fits where standard error goes."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield Lines(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        class Bars:
            def note(self, text: str) -> None:
                bars.console.print(text, markup=False, highlight=False)

            def progress(self, what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=max(total, 1))
                bars.update(tasks[what], completed=done)

        yield Bars()


class Lines:
    """Writes lines to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.progress = Tally(self.note)

    def note(self, text: str) -> None:
        """A line of its own."""
        self._stream.write(text + "\n")
        self._stream.flush()

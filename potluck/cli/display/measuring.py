"""How far measuring is: a bar per device in a terminal, a plain line now and then elsewhere. On standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple, TextIO

from potluck.metrics.tally import Tally


class MeasureDisplay(NamedTuple):
    """Whom to tell what happens while devices measure."""

    note: Callable[[str], None]  # something worth keeping
    progress: Callable[[str, int, int], None]  # a device, or the links, are so far


@contextlib.contextmanager
def measure_display() -> Iterator[MeasureDisplay]:
    """The display that fits where standard error goes."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield lines_to(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def note(text: str) -> None:
            bars.console.print(text, markup=False, highlight=False)

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=max(total, 1))
            bars.update(tasks[what], completed=done)

        yield MeasureDisplay(note, progress)


def lines_to(stream: TextIO) -> MeasureDisplay:
    """One that writes lines."""

    def note(text: str) -> None:
        stream.write(text + "\n")
        stream.flush()

    return MeasureDisplay(note, Tally(note))

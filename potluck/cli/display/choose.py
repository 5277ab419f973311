"""Which display fits where standard error goes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeAlias

from potluck.cli.display.lines import LineDisplay

if TYPE_CHECKING:
    from potluck.cli.display.live import LiveDisplay

Display: TypeAlias = "LineDisplay | LiveDisplay"  # a watcher that is also told what goes on before and after a run


def open_display(title: str, first_note: str) -> Display:
    """A live picture in a terminal that can draw one, plain lines elsewhere. Both on standard error.

    Where lines stay, the first note is left out: if the input is wrong, the only line is the one that says so.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return LineDisplay(sys.stderr)
    from rich.console import Console

    from potluck.cli.display.live import LiveDisplay

    return LiveDisplay(Console(stderr=True), title, first_note)

"""What is being worked on: a line that changes in a terminal, plain lines now and then elsewhere; on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

EVERY_S = 2.0  # between two signs of life: nobody thinks that it hangs


@contextlib.contextmanager
def working() -> Iterator[Callable[[str], None]]:
    """A function to say what is being done now; in a terminal its last words vanish with the context."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status("") as status:
            yield lambda text: status.update(escape(text))
        return
    last_s = -EVERY_S

    def say(text: str) -> None:
        nonlocal last_s
        now = time.monotonic()
        if now - last_s >= EVERY_S:
            last_s = now
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    yield say

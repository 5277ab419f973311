"""Programs that wait for each other by files. For Pythons of their own, which need not have more than the standard."""

from __future__ import annotations

import time
from pathlib import Path

LOOK_S, MOST_S = 0.05, 300.0
READY = "ready"  # is what one says that waits for a file to begin


def await_file(path: Path) -> None:
    """Until it is there, but not for ever."""
    deadline = time.monotonic() + MOST_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} did not appear in {MOST_S:.0f} s; look at what the others say")
        time.sleep(LOOK_S)

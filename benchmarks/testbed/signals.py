"""A benchmark that is told to end cleans up first."""

from __future__ import annotations

import signal
import sys


def ended_by_signals() -> None:
    """From now on SIGTERM and SIGHUP end this process like any exit does: what it started is ended, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda found, _: sys.exit(128 + found))

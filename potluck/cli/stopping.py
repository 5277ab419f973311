"""Ctrl-C: the first asks training to stop in order, the second stops it at once, the others are ignored meanwhile.

Before training there is nothing to save, so the first stops at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_INTERRUPTED = 130  # what shells give a command ended by Ctrl-C


class Stopping:
    """A context in which SIGINT and SIGTERM are ours. Made and used in the main thread."""

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._noticed = noticed  # called at the first one, inside the signal handler
        self._count = 0
        self.at_once = False  # whether a KeyboardInterrupt was raised
        self.training = False  # set by whoever knows that rounds are being trained
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        """Whether somebody asked for an end."""
        return self._count > 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            self._noticed()
            if self.training:
                return
        if not self.at_once:  # once only: another would interrupt the clean-up and leave devices behind
            self.at_once = True
            raise KeyboardInterrupt

"""Somebody who is told what happens in a run, as it happens."""

from __future__ import annotations

from typing import Protocol

from potluck.metrics.records import Record


class Watcher(Protocol):
    """Somebody who looks at a run: the live display, a test."""

    def record(self, record: Record) -> None:
        """Called with every record, as it is written."""

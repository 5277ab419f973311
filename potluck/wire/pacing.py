"""Emulated bandwidth: when a message would have left a link of a given rate."""

from __future__ import annotations

import threading


class Pacer:
    """A token bucket without a burst: messages leave one after the other, each after its transmission time.

    Any thread may call it.
    """

    def __init__(self, bandwidth_bytes_s: float | None) -> None:
        self._bandwidth_bytes_s = bandwidth_bytes_s
        self._busy_until = 0.0
        self._lock = threading.Lock()

    def release_at(self, size_bytes: int, now: float) -> float:
        """When a message queued now has been transmitted, on the caller's clock."""
        if self._bandwidth_bytes_s is None:
            return now
        with self._lock:
            self._busy_until = max(now, self._busy_until) + size_bytes / self._bandwidth_bytes_s
            return self._busy_until

    def forget(self) -> None:
        """Drop what is queued: the next message finds the line free."""
        with self._lock:
            self._busy_until = 0.0

"""Judges weights in a thread of its own, so that who makes them goes on meanwhile."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Given = TypeVar("Given")


class Judging(Generic[Given]):
    """One look after the other; where rounds are faster than looks, only the newest weights are looked at."""

    def __init__(self, judge: Callable[[int, float, Given], None]) -> None:
        """`judge` gets a round, the time at which its weights existed, and the weights."""
        self._judge = judge
        self._next: queue.Queue[tuple[int, float, Given] | None] = queue.Queue(maxsize=1)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="judging", daemon=True)
        self._thread.start()

    def put(self, round: int, at_s: float, weights: Given) -> None:
        """Weights to be judged, instead of those that nobody has begun to judge. For one thread only."""
        self._raise()
        with contextlib.suppress(queue.Empty):
            self._next.get_nowait()
        self._next.put((round, at_s, weights))

    def finish(self) -> None:
        """Waits until the last of them are judged."""
        self._next.put(None)
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise RuntimeError("weights could not be judged") from self._error

    def _work(self) -> None:
        while (look := self._next.get()) is not None:
            try:
                self._judge(*look)
            except Exception as error:  # nobody would know that nothing is judged any more
                self._error = error

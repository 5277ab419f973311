"""Emulates a slower device: sleeps in proportion to the CPU time each piece of work used."""

from __future__ import annotations

import time

_MOST_S = 0.01  # that is made up for: who was stopped for seconds is not fast for seconds afterwards


class Throttle:
    """A context around compute: at speed 0.5 work takes twice its CPU time."""

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed
        self._overslept_s = 0.0  # a sleep ends late, by as much as short work takes: the next ones are shorter for it
        self.slow_down(1.0)

    def slow_down(self, factor: float) -> None:
        """So many times as slow as the speed says, from now on."""
        self._stretch = factor / self._speed - 1.0

    def __enter__(self) -> None:
        self._cpu = time.thread_time()

    def __exit__(self, *_: object) -> None:
        if self._stretch > 0:
            self._rest((time.thread_time() - self._cpu) * self._stretch)

    def _rest(self, seconds: float) -> None:
        due_s = seconds - self._overslept_s
        if due_s <= 0:
            self._overslept_s = -due_s
            return
        began = time.perf_counter()
        time.sleep(due_s)
        self._overslept_s = min(_MOST_S, time.perf_counter() - began - due_s)

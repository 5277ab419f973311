"""Emulates a slower device: sleeps in proportion to the CPU time each piece of work used."""

from __future__ import annotations

import time


class Throttle:
    """A context around compute: at speed 0.5 work takes twice its CPU time."""

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed
        self.slow_down(1.0)

    def slow_down(self, factor: float) -> None:
        """So many times as slow as the speed says, from now on."""
        self._stretch = factor / self._speed - 1.0

    def __enter__(self) -> None:
        self._cpu = time.thread_time()

    def __exit__(self, *_: object) -> None:
        if self._stretch > 0:
            time.sleep((time.thread_time() - self._cpu) * self._stretch)

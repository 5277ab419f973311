"""How long a second of CPU time takes on this device: one where it has a core to itself, eight under a small quota.

Short work fits into one slice of a quota, or meets none of the others that want the core, and seems faster than it is
when there is more of it. Its CPU time does not vary so; what that means in seconds is learnt over all the work.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

from potluck.device.host.throttle import Throttle

_FIRST, _FIRST_S = 3, 1.0  # windows to start from, and most seconds for them: slow emulated devices rest long
_WINDOW_S = 0.1  # many periods of a quota
_WINDOWS = 41  # that count, the newest, four seconds in all: what was long ago says nothing of now
_PIECE_S = 0.01  # an emulated device rests after that long


class CpuPace:
    """Seconds that went by for each CPU second of this thread, while it had work all the time: the usual of late."""

    def __init__(self, speed: float = 1.0, first: int = _FIRST) -> None:
        self._wall_s = self._cpu_s = 0.0  # of the window that is open
        self._ratios: deque[float] = deque(maxlen=_WINDOWS)
        until = time.perf_counter() + _FIRST_S
        while len(self._ratios) < first and time.perf_counter() < until:
            with Throttle(speed):
                began, cpu = time.perf_counter(), time.thread_time()
                while time.perf_counter() - began < _PIECE_S:
                    pass
                self.add(time.perf_counter() - began, time.thread_time() - cpu)

    def add(self, wall_s: float, cpu_s: float) -> None:
        """More work was done."""
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        if self._wall_s >= _WINDOW_S:
            self._ratios.append(max(1.0, self._wall_s / self._cpu_s) if self._cpu_s > 0 else 1.0)
            self._wall_s = self._cpu_s = 0.0

    @property
    def stretch(self) -> float:
        """Seconds for each CPU second, at the better end of usual: while all devices of a machine are measured at once,
        they disturb each other more than in training, where they also wait."""
        return statistics.quantiles(self._ratios, n=4)[0] if len(self._ratios) > 1 else next(iter(self._ratios), 1.0)

    def message_s(self, thread_s: float, process_s: float) -> float:
        """Seconds a message takes from computing, given CPU seconds of the thread that computes and of all threads.

        With cores to spare, the other threads cost it nothing; where the process must share, they take it all.
        """
        shared = min(1.0, self.stretch - 1.0)
        return (thread_s + shared * max(0.0, process_s - thread_s)) * self.stretch

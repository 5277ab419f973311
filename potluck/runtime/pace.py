"""How long a second of CPU time takes on this device: one where it has a core to itself, eight under a small quota.

Short work fits into one slice of a quota, or meets none of the others that want the core, and seems faster than it is
when there is more of it. Its CPU time does not vary so; what that means in seconds is learnt over all the work.
"""

from __future__ import annotations

import time

_FIRST_S = 0.25  # many periods of a quota
_OFTEN = 1000  # loops between two looks at the clock


class Pace:
    """Seconds that went by, and CPU seconds of this thread in them, while it had work all the time."""

    def __init__(self, first_s: float = _FIRST_S) -> None:
        self._wall_s = self._cpu_s = 0.0
        began, cpu = time.perf_counter(), time.thread_time()
        while time.perf_counter() - began < first_s:
            for _ in range(_OFTEN):
                pass
        self.add(time.perf_counter() - began, time.thread_time() - cpu)

    def add(self, wall_s: float, cpu_s: float) -> None:
        """More work was done."""
        self._wall_s += wall_s
        self._cpu_s += cpu_s

    @property
    def stretch(self) -> float:
        """Seconds for each CPU second."""
        return max(1.0, self._wall_s / self._cpu_s) if self._cpu_s > 0 else 1.0

    def message_s(self, thread_s: float, process_s: float) -> float:
        """Seconds a message takes from computing, given CPU seconds of the thread that computes and of all threads.

        With cores to spare, the other threads cost it nothing; where the process must share, they take it all.
        """
        shared = min(1.0, self.stretch - 1.0)
        return (thread_s + shared * max(0.0, process_s - thread_s)) * self.stretch

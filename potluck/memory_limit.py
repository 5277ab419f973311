"""How much memory a job may take on a device, and how the device's own business gets more."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
from collections.abc import Iterator

_OWN_BYTES = 160 * 2**20  # stacks of threads and what kernels keep: address space that no tensor of the job takes


def limit_memory(more_bytes: int) -> None:
    """Lets this process allocate so much more than it needs for itself; beyond that, allocations fail."""
    if sys.platform != "linux":
        return
    with open("/proc/self/status") as status:
        used_kb = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    _limit.put(used_kb * 1024 + _OWN_BYTES + more_bytes)


@contextlib.contextmanager
def beyond_limit() -> Iterator[None]:
    """A moment in which memory is taken that is not the job's, such as the stack of a new thread.

    A heap keeps what the job once needed, up to the limit; what is free in it is no use to a stack.
    """
    _limit.lift()
    try:
        yield
    finally:
        _limit.lower()


def start(thread: threading.Thread) -> None:
    """Starts a thread, also where the job has taken all that it may."""
    with beyond_limit():
        thread.start()


class _Limit:
    """The limit of this process; several threads may lift it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._lifted = 0  # by how many

    def put(self, size: int) -> None:
        with self._lock:
            self._bytes = size
            self._set(size)

    def lift(self) -> None:
        with self._lock:
            self._lifted += 1
            if self._bytes is not None and self._lifted == 1:
                self._set(resource.getrlimit(resource.RLIMIT_DATA)[1])

    def lower(self) -> None:
        with self._lock:
            self._lifted -= 1
            if self._bytes is not None and not self._lifted:
                self._set(self._bytes)

    @staticmethod
    def _set(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


_limit = _Limit()

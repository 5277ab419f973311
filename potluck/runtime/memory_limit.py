"""How much memory a job may take on a device, and how the device's own business gets more."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator

_OWN_BYTES = 160 * 2**20  # stacks of threads and what kernels keep: address space that no tensor of the job takes


def limit_memory(more_bytes: int) -> None:
    """Lets this process allocate so much more than it needs for itself; beyond that, allocations fail."""
    if sys.platform != "linux":
        return
    with open("/proc/self/status") as status:
        used_kb = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used_kb * 1024 + _OWN_BYTES + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


@contextlib.contextmanager
def beyond_limit() -> Iterator[None]:
    """Memory that is not the job's, such as the stack of a new thread.

    A heap keeps what the job once needed, up to the limit; what is free in it is no use to a stack.
    """
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limits[1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)

"""Names that say whose a testbed is, and the removal of those whose owner is dead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.testbed import network
from benchmarks.testbed.cgroups import Cgroups
from benchmarks.testbed.errors import TestbedError

_LOCK = Path("/run/potluck-testbed.lock")
_ALONE_S = 60.0
_NAME = re.compile(r"potluck-([0-9]+)-([0-9]+)\.")


def base_name(bed: str) -> str:
    """What all names of a testbed begin with: process number and start time of its owner, and its own name."""
    return f"potluck-{os.getpid()}-{_started(os.getpid())}.{bed}"


def is_left_over(name: str) -> bool:
    """Whether this is the name of something of a testbed, and its owner is dead."""
    found = _NAME.match(name)
    return found is not None and _started(int(found[1])) != int(found[2])


def remove(base: str, cgroups: Cgroups) -> None:
    """Removes one testbed: its processes, then its cgroups and namespaces."""
    if base in cgroups.beds():
        cgroups.remove(base)
    for space in network.spaces():
        if space.startswith((f"{base}.", f"{base}@")):
            network.remove_space(space)


def remove_all(cgroups: Cgroups) -> list[str]:
    """Removes the testbeds of dead owners; returns what was removed."""
    with _alone():
        names = {*cgroups.beds(), *(re.split("[@]|[.][^.]*$", space)[0] for space in network.spaces())}
        dead = sorted(name for name in names if is_left_over(name))
        for base in dead:
            remove(base, cgroups)
        return dead


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No two processes remove the same things at once."""
    deadline = time.monotonic() + _ALONE_S
    with _LOCK.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TestbedError(f"another process holds {_LOCK} for {_ALONE_S:.0f} s; end it") from None
                time.sleep(0.05)
        yield


def _started(process: int) -> int | None:
    """When a process was started, in the kernel's ticks: numbers are used again. None: there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the program's name may hold anything, brackets too
    return None if state in "ZX" else int(rest[18])

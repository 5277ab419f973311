"""Names that say whose a testbed is, and the removal of those whose owner is dead."""

from __future__ import annotations

import os
import re
from pathlib import Path

from benchmarks.testbed import network
from benchmarks.testbed.cgroups import Cgroups

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
    names = {*cgroups.beds(), *(re.split("[@]|[.][^.]*$", space)[0] for space in network.spaces())}
    dead = sorted(name for name in names if is_left_over(name))
    for base in dead:
        remove(base, cgroups)
    return dead


def _started(process: int) -> int | None:
    """When a process was started, in the kernel's ticks: numbers are used again. None: there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the program's name may hold anything, brackets too
    return None if state in "ZX" else int(rest[18])

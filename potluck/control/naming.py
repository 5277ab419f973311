"""What a device that joins is called: two machines of one host name, and one that comes back. Pure.

A process keeps the name that it was let in by as long as it lives: after a loss, or a restart of the coordinator, it
insists on it. So does one whose owner chose the name. All others are called after their host, and boards that were made
from one image have one host name: what tells them apart is the machine. A name that was given away belongs to that
machine until the run is over, so that one that is started again is itself again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import NamedTuple

from potluck.types import LONGEST_NAME


class Caller(NamedTuple):
    """Who wants to be let in."""

    name: str
    insists: bool  # no other name will do
    machine: str  # "" where that cannot be told


class Known(NamedTuple):
    """Who was let in by a name."""

    machine: str
    here: bool  # and has not gone since


class NameGiven(NamedTuple):
    """The name of a device, and why it is not the one that it said; or why it has none."""

    name: str | None
    why: str = ""


def name_for(caller: Caller, known: Mapping[str, Known]) -> NameGiven:
    """The name that a device is let in by, given all names of the run so far."""
    own = known.get(caller.name)
    if caller.insists:
        taken = own is not None and own.here
        refusal = f"the name {caller.name} is taken; join with another --name, or without one"
        return NameGiven(None, refusal) if taken else NameGiven(caller.name)
    name = next(name for name in _candidates(caller.name) if _is_free(known.get(name), caller.machine))
    return NameGiven(name, "" if name == caller.name else f"the name {caller.name} is taken")


def _candidates(name: str) -> Iterator[str]:
    """pi, pi-2, pi-3, …"""
    yield name
    for number in count(2):
        end = f"-{number}"
        yield name[: LONGEST_NAME - len(end)] + end


def _is_free(was: Known | None, machine: str) -> bool:
    return was is None or (not was.here and (was.machine == machine or not was.machine or not machine))

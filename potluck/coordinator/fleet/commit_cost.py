"""What a commit takes: from the last report to the word that it is committed."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from potluck.coordinator.fleet.roster import Roster
from potluck.wire.messages import Echo

_ECHOES = 8  # of which the median counts: a disturbed one does no harm, and all together are over in a moment


def commit_seconds(roster: Roster, devices: Iterable[str], folder: Path | None, timeout_s: float) -> float:
    """There and back to all of these, and the ledger to disk between: to that of the folder, where one is given."""
    everybody = tuple(devices)
    with scratch(folder) as ledger:
        took = [_echo(roster, everybody, number, ledger.fileno(), timeout_s) for number in range(_ECHOES)]
    return statistics.median(took[1:])


def scratch(folder: Path | None) -> IO[bytes]:
    """A nameless file, beside the profiles if it can be: the system's folder may be in memory and too fast."""
    if folder is not None:
        with contextlib.suppress(OSError):
            return tempfile.TemporaryFile(dir=folder)
    return tempfile.TemporaryFile()


def _echo(roster: Roster, devices: tuple[str, ...], number: int, ledger: int, timeout_s: float) -> float:
    started = time.perf_counter()
    roster.broadcast(Echo(number=number), devices)
    waiting = set(devices)
    deadline = time.monotonic() + timeout_s
    while waiting:
        device, answer = roster.next(deadline, f"waiting for {', '.join(sorted(waiting))} to answer")
        if isinstance(answer, Echo) and answer.number == number:
            waiting.discard(device)
    os.write(ledger, b"\0" * 256)
    os.fsync(ledger)
    return time.perf_counter() - started

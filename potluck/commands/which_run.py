"""Which run is meant, where its folder is not given."""

from __future__ import annotations

import contextlib
from pathlib import Path

from potluck.commands.here import RUNS
from potluck.commands.run_log import LOG
from potluck.coordinator.run_folder.ledger_file import RUN
from potluck.coordinator.run_folder.process_record import PROCESS, alive, written
from potluck.errors import InputError
from potluck.metrics.records import RECORDS


def chosen_run(given: Path | None) -> Path:
    """The folder that was given, or that of the run that was started last."""
    if given is not None:
        if not _holds_run(given):
            raise InputError(f"{given}: holds no run; give the folder of one, like {RUNS}/20260131-120000")
        return given
    found = runs()
    if not found:
        raise InputError(f"no run in {RUNS.resolve()}; give the folder of one")
    return found[0]


def runs(parent: Path = RUNS) -> list[Path]:
    """Folders of runs, the one that was started last first."""
    return sorted((path for path in parent.glob("*") if _holds_run(path)), key=_began, reverse=True)


def running(parent: Path = RUNS) -> list[Path]:
    """Folders of runs whose process lives, the one that was started last first."""
    return [path for path in runs(parent) if alive(written(path)) is not None]


def _holds_run(path: Path) -> bool:
    return any((path / name).is_file() for name in (RECORDS, PROCESS, LOG))


def _began(path: Path) -> tuple[float, str]:
    # Records and log grow as long as it trains; these two are written when a process begins, and when it trains.
    times = []
    for name in (PROCESS, RUN):
        with contextlib.suppress(OSError):
            times.append((path / name).stat().st_mtime)
    if not times:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=0.0), path.name

"""Which process trains in a run's folder: written down when it begins, found again later, never mistaken for another.

The number of a process that has ended is given to another one some day. So a process is known by its number, by when it
was started (seconds after the machine booted, which setting the clock does not change), and by which boot that was.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from potluck.coordinator.run_folder.folder_names import make, remove_empty
from potluck.errors import InputError
from potluck.metrics.records import RECORDS
from potluck.settings.own_command import command
from potluck.types import Value

PROCESS = "process.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SAME_S = 0.1  # the kernel counts in hundredths of a second; no number comes round again so soon


class ProcessFacts(Value, frozen=True, kw_only=True):
    """The process of a run."""

    version: Literal[1] = 1
    pid: int
    started_s: float  # after the machine booted
    boot: str  # which boot, of which machine
    records_before: int  # records of the folder that are older than this process
    address: str | None = None  # where devices join, once it listens there


class RunProcess:
    """A context in which this process is the one that trains in a folder. A folder nothing came of is removed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def __enter__(self) -> RunProcess:
        self._made = make(self._run_dir)
        try:
            with _alone(self._run_dir):
                check_free(self._run_dir)
                self._facts = facts_of(psutil.Process(), _count_records(self._run_dir))
                self._write()
        except BaseException:
            remove_empty(self._made)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if written(self._run_dir) == self._facts:
            with contextlib.suppress(OSError):  # then it names a process that is gone, which is just as true
                (self._run_dir / PROCESS).unlink()
        remove_empty(self._made)

    def listening(self, also: Callable[[str], None]) -> Callable[[str], None]:
        """A function to call with the address where devices join; it tells `also` too."""

        def heard(address: str) -> None:
            self._facts = msgspec.structs.replace(self._facts, address=address)
            self._write()
            also(address)

        return heard

    def _write(self) -> None:
        fresh = self._run_dir / f".new-{PROCESS}"
        try:
            fresh.write_bytes(msgspec.json.encode(self._facts) + b"\n")
            fresh.rename(self._run_dir / PROCESS)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise InputError(f"{self._run_dir}: cannot be written ({error.strerror}); give another --run-dir") from None


def written(run_dir: Path) -> ProcessFacts | None:
    """The process that a folder names, alive or not."""
    try:
        return msgspec.json.decode((run_dir / PROCESS).read_bytes(), type=ProcessFacts)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def facts_of(process: Any, records_before: int) -> ProcessFacts:
    return ProcessFacts(
        pid=process.pid, started_s=_started_s(process), boot=_this_boot(), records_before=records_before
    )


def alive(facts: ProcessFacts | None) -> Any:
    """The living process (of psutil) that is meant, or None; one that has ended and waits to be collected is gone."""
    if facts is None or facts.boot != _this_boot():
        return None
    try:
        process = psutil.Process(facts.pid)
        same = abs(_started_s(process) - facts.started_s) < _SAME_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def check_free(run_dir: Path) -> None:
    """Raises if a living process trains in this folder."""
    process = alive(written(run_dir))
    if process is not None:
        raise InputError(
            f"{run_dir}: process {process.pid} trains in this folder; "
            f"end it with: {command('stop', run_dir)}, or give another --run-dir"
        )


def _started_s(process: Any) -> float:
    # The one is the other plus a constant; both move when the clock is set, and their difference does not.
    return float(process.create_time() - psutil.boot_time())


def _this_boot() -> str:
    try:
        return hashlib.sha256(_BOOT.read_bytes()).hexdigest()[:16]  # the id itself is nobody's business
    except OSError:
        return ""


def _count_records(run_dir: Path) -> int:
    try:
        return (run_dir / RECORDS).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Only one process at a time looks into the folder and writes itself down."""
    try:
        folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{run_dir}: cannot be read ({error.strerror}); give another --run-dir") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InputError(f"{run_dir}: another run begins in this folder; give another --run-dir") from None
    finally:
        os.close(folder)

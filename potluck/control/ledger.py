"""The ledger: which samples each committed round used, one JSON line per round, on disk before the commit is sent.

`control/audit.py` proves from it, with code of its own, that every sample was used exactly once.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from potluck.errors import InputError, PotluckError
from potluck.types import Value

LEDGER = "ledger.jsonl"
RUN = "run.json"

Runs = tuple[int | tuple[int, int], ...]


class RunFacts(Value, frozen=True, kw_only=True):
    """What the audit needs to know of a run, written once at its start."""

    version: Literal[1] = 1
    samples: int  # size of the data set
    batch_size: int
    epochs: int | None
    rounds: int | None
    seed: int
    run: str = ""  # by which devices that hold its states know it


class LedgerEntry(Value, frozen=True, kw_only=True):
    """One committed round."""

    round: int
    epoch: int
    term: int
    samples: Runs  # ids in order; [a, b] stands for a, a+1, …, b-1
    loss: str  # float.hex: exactly the number
    digest: str  # of the losses of the round's parts


def entry(*, round: int, epoch: int, term: int, ids: Sequence[int], loss: float, digest: str) -> LedgerEntry:
    """The ledger entry of a round."""
    return LedgerEntry(round=round, epoch=epoch, term=term, samples=pack(ids), loss=float(loss).hex(), digest=digest)


def loss_digest(losses: Iterable[float]) -> str:
    """Digest of the losses of a round's micro-batches, in order; equal only if every bit is."""
    values = list(losses)
    return hashlib.sha256(struct.pack(f"<{len(values)}d", *values)).hexdigest()[:32]


def pack(ids: Sequence[int]) -> Runs:
    """Ids in order, with stretches of three or more that count upwards written as [first, after the last]."""
    packed: list[int | tuple[int, int]] = []
    start = 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and ids[end] == ids[end - 1] + 1:
            continue
        run = ids[start:end]
        packed.extend([(run[0], run[-1] + 1)] if len(run) >= 3 else run)
        start = end
    return tuple(packed)


def unpack(samples: Runs) -> tuple[int, ...]:
    """The ids that `pack` was given."""
    ids: list[int] = []
    for item in samples:
        ids.extend((item,) if isinstance(item, int) else range(*item))
    return tuple(ids)


def write_facts(run_dir: Path, facts: RunFacts) -> None:
    """Write run.json, whole or not at all."""
    _replace(run_dir / RUN, msgspec.json.encode(facts) + b"\n")


class Ledger:
    """The ledger of a run, open for appending. Rounds follow each other without gaps, from 0."""

    def __init__(self, path: Path, *, fsync: bool = True) -> None:
        """Open or create. `fsync=False` is for a device that commits by itself and can lose rounds only with itself."""
        self._path = path
        self.fsync = fsync
        self._starts: list[int] = []  # where each round's line begins
        self.torn: str | None = None  # what was cut off the end, in words, if the last write was interrupted
        existed = path.exists()
        # O_APPEND is not used: after a failed write the file is cut back and written at that place again.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not existed:
            _sync_folder(path.parent)
        self._end = self._scan()

    @property
    def rounds(self) -> int:
        """How many rounds are committed; the number of the next one."""
        return len(self._starts)

    def append(self, entry: LedgerEntry) -> None:
        """Write the entry of the next round; when this returns it is on disk and the commit may be sent."""
        if entry.round != self.rounds:
            raise ValueError(f"ledger: round {entry.round} given where {self.rounds} comes next")
        line = msgspec.json.encode(entry) + b"\n"
        try:
            _write_all(self._file, line, self._end)
            if self.fsync:
                os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise PotluckError(
                f"{self._path}: cannot be written: {error.strerror}; round {entry.round} is not committed; "
                "free some space there and resume"
            ) from error
        self._starts.append(self._end)
        self._end += len(line)

    def entry(self, round: int) -> LedgerEntry:
        """The entry of a committed round."""
        if not 0 <= round < self.rounds:
            raise IndexError(f"ledger: round {round} of {self.rounds}")
        start = self._starts[round]
        end = self._starts[round + 1] if round + 1 < self.rounds else self._end
        return msgspec.json.decode(os.pread(self._file, end - start, start), type=LedgerEntry)

    def entries(self) -> Iterator[LedgerEntry]:
        """Every entry, oldest first."""
        return (self.entry(round) for round in range(self.rounds))

    def replay(self, replayed: LedgerEntry) -> str:
        """Take in a round trained again after a rollback. Returns what came out other than before; the term may.

        What was trained again is in force: from the first difference on, what was written before is forgotten, as
        nobody has the weights that it speaks of.
        """
        known = self.entry(replayed.round)
        for what in ("epoch", "samples", "loss", "digest"):
            if getattr(known, what) != getattr(replayed, what):
                self.truncate_after(replayed.round - 1)
                self.append(replayed)
                return what
        return ""

    def truncate_after(self, round: int) -> None:
        """Forget every round after this one (-1: all). Done wholly or not at all."""
        if round + 1 >= self.rounds:
            return
        end = self._starts[round + 1]
        _replace(self._path, _read_all(self._file, end))
        os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        del self._starts[round + 1 :]
        self._end = end

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _scan(self) -> int:
        """Find every line; cut off a torn last one. Returns where the next line goes."""
        data = _read_all(self._file, os.fstat(self._file).st_size)
        start = 0
        while start < len(data):
            end = data.find(b"\n", start) + 1
            problem = self._problem(data[start:end]) if end else "it has no end"
            if problem and end in (0, len(data)):
                self.torn = f"{self._path}: the last line was cut off, its write was interrupted: {problem}"
                os.ftruncate(self._file, start)
                os.fsync(self._file)
                return start
            if problem:
                raise InputError(
                    f"{self._path}, line {self.rounds + 1}: is damaged: {problem}; "
                    "delete it and what follows, then resume from an earlier checkpoint"
                )
            self._starts.append(start)
            start = end
        return start

    def _problem(self, line: bytes) -> str | None:
        try:
            found = msgspec.json.decode(line, type=LedgerEntry)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return str(error)
        return None if found.round == self.rounds else f"round {found.round} where {self.rounds} comes next"


def _read_all(file: int, size: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < size and (part := os.pread(file, size - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _write_all(file: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def _replace(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    fresh = path.with_name(f".new-{path.name}")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise PotluckError(f"{path}: cannot be written: {error.strerror}; free some space there") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

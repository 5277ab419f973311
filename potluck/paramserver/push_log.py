"""The ledger of a parameter server: one JSON line for every worker that entered and every push that was applied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from potluck.errors import InputError, PotluckError
from potluck.paramserver.applied_pushes import Entry, Page, Seen
from potluck.types import Value

PUSHES = "pushes.jsonl"


class Entered(Value, frozen=True, kw_only=True, tag="entered"):
    """A worker began; its earlier incarnations are refused from here on."""

    worker: str
    incarnation: int
    samples: int


class Pushed(Value, frozen=True, kw_only=True, tag="pushed"):
    """A push was applied, or skipped."""

    entry: Entry


PushLogLine = Entered | Pushed
_decoder = msgspec.json.Decoder(PushLogLine)


class PushLog:
    """The file, open for appending. What was not synced may be lost in a power cut; nothing before it is."""

    def __init__(self, path: Path, version: int | None = None) -> None:
        """From a version of the weights on: lines after it are dropped, as those pushes come again."""
        self._path = path
        try:
            lines = list(_whole(path))
            kept = [line for line in lines if version is None or _version(line) <= version]
            if not path.exists() or len(kept) != len(lines) or _torn(path):
                _replace(path, b"".join(msgspec.json.encode(line) + b"\n" for line in kept))
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InputError(f"{path}: cannot be opened: {error.strerror}; look at its folder") from error
        self.page = page_of(kept)
        self.samples = {line.worker: line.samples for line in kept if isinstance(line, Entered)}

    def append(self, line: PushLogLine) -> None:
        """Adds a line, whole or not at all."""
        data = msgspec.json.encode(line) + b"\n"
        end = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(data) != len(data):
                raise OSError(28, "No space left on device")
        except OSError as error:
            os.truncate(self._path, end)
            raise PotluckError(f"{self._path}: cannot be written: {error.strerror}; free some space there") from error

    def sync(self) -> None:
        """From here on nothing so far is lost in a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def entries(path: Path) -> list[Entry]:
    """The pushes of a ledger, in order."""
    return [line.entry for line in _whole(path) if isinstance(line, Pushed)]


def workers_of(folder: Path) -> tuple[str, ...]:
    """Who took part in a run."""
    return tuple(sorted({line.worker for line in _whole(folder / PUSHES) if isinstance(line, Entered)}))


def page_of(lines: list[PushLogLine]) -> Page:
    """What a server that has seen these lines knows."""
    seen: dict[str, Seen] = {}
    version = 0
    for line in lines:
        if isinstance(line, Entered):
            seen[line.worker] = Seen(line.incarnation, 0)
        else:
            push = line.entry.push
            seen[push.worker] = Seen(push.incarnation, push.sequence)
            version = line.entry.version
    return Page(version=version, seen=seen)


def _version(line: PushLogLine) -> int:
    """After which version a line counts: entering is kept whenever it happened, so that nobody is let in twice."""
    return line.entry.version if isinstance(line, Pushed) else 0


def _whole(path: Path) -> Iterator[PushLogLine]:
    """Lines up to a torn one at the end."""
    if not path.exists():
        return
    data = path.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            yield _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: line {number} is no line of a ledger: {error}; restore the file") from error


def _torn(path: Path) -> bool:
    data = path.read_bytes()
    return bool(data) and not data.endswith(b"\n")


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".new-{path.name}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""Journals: files of JSON lines that only grow. The ledger, the records, the terms and the pushes of a run are such.

*When a line is on disk.* A durable line is when `append` returns, with every line before it: somebody is told next what
nobody may forget, that a round is committed or a plan in force. Any other line is with the operating system: everybody
can read it and it outlives the process, but a power cut may take the last ones. Only who appends knows what it says
next, so it decides, for each line.

*A torn line.* The last line is torn if it has no end or is no JSON: its write was interrupted, and nobody was told of
it. It is cut off when the journal is opened to append, and left out when it is only read. Whatever else cannot be read
is damage, an error that names file and line.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from potluck.errors import InputError, PotluckError

T = TypeVar("T")

_IF_FULL = "free some space there, then go on from the last checkpoint with --resume"


class Journal:
    """A journal, open for appending. Every method may be called from any thread."""

    def __init__(self, path: Path, if_full: str = _IF_FULL) -> None:
        """Opens or creates; `if_full` says what to do when a line cannot be written."""
        self._path, self._if_full = path, if_full
        self._lock = threading.Lock()
        existed = path.exists()
        self._file = self._open()
        if not existed:
            _sync_folder(path.parent)
        data = path.read_bytes()
        self._end = whole_bytes(data)
        self._starts = _starts(data[: self._end])
        self.torn = self._end < len(data)  # the last write was interrupted, and what it left was cut off
        if self.torn:
            os.ftruncate(self._file, self._end)
            os.fsync(self._file)

    def __len__(self) -> int:
        return len(self._starts)

    def append(self, line: bytes, *, durable: bool) -> None:
        """Adds a line, given without its end, whole or not at all; a PotluckError if there is no room for it."""
        data = line + b"\n"
        with self._lock:
            try:
                self._write(data)
                if durable:
                    os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):  # else the next line, or who opens it next, cuts it off
                    os.ftruncate(self._file, self._end)
                raise self._full(error) from error
            self._starts.append(self._end)
            self._end += len(data)

    def sync(self) -> None:
        """Returns when every line so far is on disk. Lines can be appended meanwhile."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._full(error) from error

    def line(self, number: int) -> bytes:
        """A line, without its end, counted from 0."""
        with self._lock:
            end = self._starts[number + 1] if number + 1 < len(self._starts) else self._end
            return os.pread(self._file, end - self._starts[number], self._starts[number])[:-1]

    def lines(self) -> list[bytes]:
        """Every line, oldest first."""
        return [self.line(number) for number in range(len(self))]

    def truncate_from(self, number: int) -> None:
        """Forgets this line and all that follow; when this returns they are gone from the disk too."""
        if number < len(self):
            self.rewrite(self.lines()[:number])

    def rewrite(self, lines: Sequence[bytes]) -> None:
        """Puts these lines in the place of all that there are, wholly or not at all."""
        data = b"".join(line + b"\n" for line in lines)
        with self._lock:
            write_whole(self._path, data)
            os.close(self._file)
            self._file = self._open()
            self._starts, self._end = _starts(data), len(data)

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> int:
        # Not O_APPEND: after a failed write the file is cut back and written at that place again.
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _write(self, data: bytes) -> None:
        if os.fstat(self._file).st_size > self._end:  # a line that failed could not be cut off then
            os.ftruncate(self._file, self._end)
        at = self._end
        while data:
            written = os.pwrite(self._file, data, at)
            data, at = data[written:], at + written

    def _full(self, error: OSError) -> PotluckError:
        return PotluckError(f"{self._path}: cannot be written: {error.strerror}; {self._if_full}")


def read_journal(path: Path, decode: Callable[[bytes], T], offset: int = 0) -> tuple[list[T], int]:
    """What `decode` makes of the lines from a byte offset on, and the offset to go on from, for following a journal."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the folder of a run") from error
    whole = data[: whole_bytes(data)]
    after = f" from byte {offset}" if offset else ""
    found = []
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            found.append(decode(line))
        except (PotluckError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{path}, line {number}{after}: is damaged: {error}; restore the file") from error
    return found, offset + len(whole)


def whole_bytes(data: bytes) -> int:
    """How many of a journal's bytes are lines; what follows them is a torn one."""
    end = data.rfind(b"\n") + 1
    last = data.rfind(b"\n", 0, max(0, end - 1)) + 1
    try:
        msgspec.json.decode(data[last:end] or b"null")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return last
    return end


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file, wholly or not at all; it is on disk when this returns."""
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


def _starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at = data.index(b"\n", at) + 1
    return starts


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

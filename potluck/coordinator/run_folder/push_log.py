"""The ledger of a parameter server on disk: who entered is durable at once, what was pushed with the next snapshot."""

from __future__ import annotations

from pathlib import Path

import msgspec

from potluck.errors import InputError
from potluck.journal import Journal, read_journal
from potluck.paramserver.applied_pushes import Entry
from potluck.paramserver.push_lines import Entered, Pushed, PushLine, counts_after, page_of

PUSHES = "pushes.jsonl"
_decode = msgspec.json.Decoder(PushLine).decode


class PushLog:
    """A `PushLedger` in a file. What was not synced may be lost in a power cut; nothing before it is."""

    def __init__(self, path: Path, version: int = 0) -> None:
        """For weights of this version: pushes after it are dropped, as they come again."""
        self._journal = Journal(path, "free some space there")
        lines = _lines(path)
        kept = [line for line in lines if counts_after(line) <= version]
        if len(kept) != len(lines):
            self._journal.rewrite([msgspec.json.encode(line) for line in kept])
        self.page = page_of(kept)
        if self.page.version != version:
            raise InputError(
                f"{path}: ends with push {self.page.version}, and the weights are of {version}; "
                "restore the ledger, or start anew"
            )
        self.samples = {line.worker: line.samples for line in kept if isinstance(line, Entered)}

    def append(self, line: PushLine) -> None:
        self._journal.append(msgspec.json.encode(line), durable=isinstance(line, Entered))

    def sync(self) -> None:
        self._journal.sync()

    def close(self) -> None:
        self._journal.close()


def entries(path: Path) -> list[Entry]:
    """The pushes of a ledger, in order."""
    return [line.entry for line in _lines(path) if isinstance(line, Pushed)]


def workers_of(folder: Path) -> tuple[str, ...]:
    """Who took part in a run."""
    return tuple(sorted({line.worker for line in _lines(folder / PUSHES) if isinstance(line, Entered)}))


def _lines(path: Path) -> list[PushLine]:
    return read_journal(path, _decode)[0] if path.exists() else []

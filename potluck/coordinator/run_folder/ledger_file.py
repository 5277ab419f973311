"""The ledger of a run on disk: a round's entry is there before its commit is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from potluck.control.ledger import LedgerEntry, RunFacts
from potluck.errors import InputError
from potluck.journal import Journal, read_journal, write_whole

LEDGER = "ledger.jsonl"
RUN = "run.json"

_decode = msgspec.json.Decoder(LedgerEntry).decode


def write_facts(run_dir: Path, facts: RunFacts) -> None:
    """Writes run.json, whole or not at all."""
    write_whole(run_dir / RUN, msgspec.json.encode(facts) + b"\n")


class Ledger:
    """The ledger of a run, open for appending. Rounds follow each other without gaps, from 0."""

    def __init__(self, path: Path, *, fsync: bool = True) -> None:
        """Open or create. `fsync=False` is for a device that commits by itself and can lose rounds only with itself."""
        self.fsync = fsync
        self._journal = Journal(path, "its round is not committed; free some space there and resume")
        for expected, found in enumerate(read_journal(path, _decode)[0]):
            if found.round != expected:
                raise InputError(
                    f"{path}, line {expected + 1}: is damaged: round {found.round} where {expected} comes next; "
                    "delete it and what follows, then resume from an earlier checkpoint"
                )

    @property
    def rounds(self) -> int:
        """How many rounds are committed; the number of the next one."""
        return len(self._journal)

    def append(self, entry: LedgerEntry) -> None:
        """Write the entry of the next round; when this returns it is on disk and the commit may be sent."""
        if entry.round != self.rounds:
            raise ValueError(f"ledger: round {entry.round} given where {self.rounds} comes next")
        self._journal.append(msgspec.json.encode(entry), durable=self.fsync)

    def entry(self, round: int) -> LedgerEntry:
        if not 0 <= round < self.rounds:
            raise IndexError(f"ledger: round {round} of {self.rounds}")
        return _decode(self._journal.line(round))

    def entries(self) -> Iterator[LedgerEntry]:
        return (self.entry(round) for round in range(self.rounds))

    def replay(self, replayed: LedgerEntry) -> str:
        """Take in a round trained again after a rollback. Returns what came out other than before; the term may.

        What was trained again is in force: from the first difference on, what was written before is forgotten, as
        nobody has the weights that it speaks of.
        """
        known = self.entry(replayed.round)
        for what in ("epoch", "samples", "loss", "digest"):
            if getattr(known, what) != getattr(replayed, what):
                self._journal.truncate_from(replayed.round)
                self.append(replayed)
                return what
        return ""

    def truncate_after(self, round: int) -> None:
        """Forget every round after this one (-1: all). Done wholly or not at all."""
        self._journal.truncate_from(round + 1)

    def close(self) -> None:
        self._journal.close()

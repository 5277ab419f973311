"""The terms of a run on disk: which plan was in force, from which round on. With the ledger, all that a coordinator
needs to know when it comes back to devices that held on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from potluck.journal import Journal, read_journal
from potluck.types import Plan, Value

TERMS = "terms.jsonl"


class Term(Value, frozen=True, kw_only=True):
    """A plan that was about to come into force."""

    term: int
    round: int  # the first that was to be trained
    plan: Plan


class TermLog:
    """Terms, one JSON line each, on disk before any device is told of one."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def append(self, term: Term) -> None:
        """Writes one more; when this returns, it is on disk."""
        self._journal.append(msgspec.json.encode(term), durable=True)

    def close(self) -> None:
        self._journal.close()


def read_terms(path: Path) -> dict[int, Term]:
    """Term → what was written of it; a line that a crash cut off was never told to anybody."""
    if not path.exists():
        return {}
    return {term.term: term for term in read_journal(path, msgspec.json.Decoder(Term).decode)[0]}

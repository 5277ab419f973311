"""The terms of a run on disk: which plan was in force, from which round on. With the ledger, all that a coordinator
needs to know when it comes back to devices that held on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from potluck.errors import PotluckError
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
        self._path = path

    def append(self, term: Term) -> None:
        """Writes one more; when this returns, it is on disk."""
        try:
            # What a crash cut off must not swallow this line.
            torn = self._path.exists() and not self._path.read_bytes().endswith(b"\n") and self._path.stat().st_size > 0
            with self._path.open("ab") as file:
                file.write(b"\n" * torn + msgspec.json.encode(term) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise PotluckError(
                f"{self._path}: cannot be written: {error.strerror}; free some space there and resume"
            ) from error


def read_terms(path: Path) -> dict[int, Term]:
    """Term → what was written of it; a line that a crash cut off was never told to anybody."""
    found: dict[int, Term] = {}
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, PotluckError):
            term = msgspec.json.decode(line, type=Term)
            found[term.term] = term
    return found

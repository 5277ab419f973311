"""What was measured, in a file: written after every few cells, so that a run that ends early has lost little."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.throughput.cells import Cell
from benchmarks.throughput.machine import WrongInput
from benchmarks.throughput.measure import Result
from benchmarks.throughput.report import chart, figures


@dataclass(frozen=True)
class Measured:
    """Cells, the cost of the transport, and where and how long all this was measured."""

    cells: Sequence[Result] = ()
    cpu_s_per_gb: float | None = None
    gloo_cpu_s_per_gb: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    time_limit_s: float | None = None
    left_out: Sequence[str] = field(default_factory=list)  # cells for which there was no time


def summary(measured: Measured) -> dict[str, Any]:
    """Everything that the cells come to."""
    others = {name: value for name, value in asdict(measured).items() if name != "cells"}
    return {**figures(measured.cells), **others}


def check_writable(folder: Path, files: Iterable[Path]) -> None:
    """Makes the folder and finds out whether these files can be written in it, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for file in files:
            if file.exists():
                file.open("r+b").close()
    except OSError as error:
        raise WrongInput(f"results cannot be kept in {folder}: {_why(error)}") from None


def check_same_code(known: Iterable[Result], cells: Collection[Cell], code: str) -> None:
    """Refuses to measure again with other code: every turn of these cells must have had this commit, unchanged."""
    for result in known:
        if result.cell in cells:
            codes = {when.partition(" ")[2] for when in result.when} or {""}
            if codes != {code} or not code or code.endswith("-dirty"):
                was = ", ".join(sorted(other or "unknown code" for other in codes))
                raise WrongInput(
                    f"--again: {result.cell.name}:{result.cell.model} was measured with {was}, and this is "
                    f"{code or 'unknown code'}; use --add to measure it anew"
                )


def _why(error: OSError) -> str:
    return f"{error.strerror}: {error.filename}" if error.filename else str(error)


class Kept:
    """Figures, raw measurements and a chart in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._figures, self._raw, self._chart = (folder / f"{name}{end}" for end in (".json", "-raw.json", ".svg"))

    def begin(self, cells: Collection[Cell], code: str, *, add: bool, again: bool) -> Measured:
        """What was measured before and stays; a line about the folder if more cannot or must not be kept there."""
        check_writable(self._raw.parent, (self._figures, self._raw, self._chart))
        known = self.read()
        if self._raw.exists() and not (add or again):
            count = f"{len(known.cells)} cell{'s' * (len(known.cells) != 1)}"
            raise WrongInput(f"{self._raw} has {count} already; add --add to keep them, or name another folder")
        if again:
            check_same_code(known.cells, cells, code)
        return known

    def read(self) -> Measured:
        """What was measured before; nothing, if there is no file."""
        try:
            return msgspec.json.decode(self._raw.read_bytes(), type=Measured)
        except FileNotFoundError:
            return Measured()
        except OSError as error:
            raise WrongInput(f"what was measured before cannot be read: {_why(error)}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WrongInput(f"{self._raw}: {error}; move it away to begin anew") from None

    def write(self, measured: Measured) -> None:
        """Keeps it all."""
        self._raw.parent.mkdir(parents=True, exist_ok=True)
        _replace(self._raw, msgspec.json.format(msgspec.json.encode(measured), indent=1).decode() + "\n")
        _replace(self._figures, json.dumps(summary(measured), indent=1) + "\n")
        _replace(self._chart, chart(measured.cells))


def _replace(path: Path, text: str) -> None:
    """A run that is stopped while it writes leaves what was there before."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)

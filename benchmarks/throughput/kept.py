"""What was measured, in a file: written after every few cells, so that a run that ends early has lost little."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

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


def summary(measured: Measured) -> dict[str, Any]:
    """Everything that the cells come to."""
    others = {name: value for name, value in asdict(measured).items() if name != "cells"}
    return {**figures(measured.cells), **others}


class Kept:
    """Figures, raw measurements and a chart in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._figures, self._raw, self._chart = (folder / f"{name}{end}" for end in (".json", "-raw.json", ".svg"))

    def read(self) -> Measured:
        """What was measured before; nothing, if there is no file."""
        try:
            return msgspec.json.decode(self._raw.read_bytes(), type=Measured)
        except FileNotFoundError:
            return Measured()
        except msgspec.MsgspecError as error:
            raise click.ClickException(f"{self._raw}: {error}; move it away to begin anew") from None

    def write(self, measured: Measured) -> None:
        """Keeps it all."""
        self._raw.parent.mkdir(parents=True, exist_ok=True)
        self._raw.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
        self._figures.write_text(json.dumps(summary(measured), indent=1) + "\n")
        self._chart.write_text(chart(measured.cells))

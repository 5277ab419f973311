"""A metrics sink of one's own: the loss of every round, as a table that any program reads, while the run goes on."""

from __future__ import annotations

import csv
from pathlib import Path

from potluck.metrics.records import Record
from potluck.metrics.sinks import register_sink
from potluck.types import RoundRecord


class CsvSink:
    """Writes rounds.csv in the folder of the run; a run that is resumed goes on with it."""

    def __init__(self, run_dir: Path) -> None:
        self._file = (run_dir / "rounds.csv").open("a", newline="", buffering=1)
        self._rows = csv.writer(self._file)
        if not self._file.tell():
            self._rows.writerow(["round", "samples", "loss", "seconds"])

    def record(self, record: Record) -> None:
        """Called with every record; evaluations, incidents, pushes and the rest are of other types."""
        if isinstance(record, RoundRecord):
            self._rows.writerow([record.round, record.samples, record.loss, record.seconds])

    def close(self) -> None:
        """Called once, when the run is over."""
        self._file.close()


register_sink(CsvSink)

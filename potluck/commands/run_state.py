"""What a run has come to, from its folder alone: its records, and whether its process lives."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from potluck.commands.run_log import LOG, complaint, last_line
from potluck.coordinator.run_folder.process_record import ProcessFacts, alive, written
from potluck.metrics.clock import RecordClock
from potluck.metrics.records import RECORDS, CheckpointRecord, IncidentRecord, Record, RunEnded, RunStarted, read_from
from potluck.metrics.run_view import RunView

State = Literal["starting", "running", "ending", "finished", "stopped", "early", "failed", "interrupted"]
_INTERRUPTED = "interrupted"  # what train says when it was stopped at once


class Followed:
    """The records of a run, read as they are written; only whole lines count."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / RECORDS
        self._offset = 0
        self._clock = RecordClock()
        self.view = RunView()
        self.count = 0  # records so far
        self.incidents = 0
        self.checkpoint: int | None = None  # rounds committed by the last one
        self.now_s = 0.0  # when the last record was written, after its run was started or resumed
        self._started: int | None = None  # which record was the last start
        self._end: RunEnded | None = None  # of what began with it, or could not begin
        self._ended = -1  # which record that was

    def more(self) -> list[tuple[Record, float]]:
        """What was written since the last call, each record with when that was."""
        if not self._path.is_file():  # nothing is trained yet
            return []
        records, self._offset = read_from(self._path, self._offset)
        return [(record, self._see(record)) for record in records]

    def begun(self, facts: ProcessFacts | None) -> bool:
        """Whether this process has begun to train; where none is known, whether any has."""
        return self._started is not None and (facts is None or self._started >= facts.records_before)

    def end(self, facts: ProcessFacts | None) -> RunEnded | None:
        of_this = facts is None or self._ended >= facts.records_before
        return self._end if of_this or self.begun(facts) else None

    def _see(self, record: Record) -> float:
        self.now_s = self._clock.at(record)
        self.view.see(record, self.now_s)
        match record:
            case RunStarted():
                self._started, self._end = self.count, None
            case RunEnded():
                self._end, self._ended = record, self.count
            case IncidentRecord():
                self.incidents += 1
            case CheckpointRecord():
                self.checkpoint = record.round
        self.count += 1
        return self.now_s


@dataclass(frozen=True)
class FoundRun:
    """A run, as it is now."""

    run_dir: Path
    state: State
    records: Followed
    facts: ProcessFacts | None  # of its process, alive or not
    message: str = ""  # what it said last, or what went wrong
    seconds: float | None = None  # since its process began, or how long it trained

    @property
    def process(self) -> int | None:
        """Number of its process, if that lives."""
        return self.facts.pid if self.facts is not None and self.state in ("starting", "running", "ending") else None


def look(run_dir: Path) -> FoundRun:
    facts = written(run_dir)
    process = alive(facts)  # first: what a process wrote before it ended is then among the records
    records = Followed(run_dir)
    records.more()
    return over(run_dir, records, facts) if process is None else _under_way(run_dir, records, facts, process)


def _under_way(run_dir: Path, records: Followed, facts: ProcessFacts | None, process: Any) -> FoundRun:
    elapsed_s = time.time() - process.create_time()
    if not records.begun(facts):
        return FoundRun(run_dir, "starting", records, facts, last_line(run_dir), elapsed_s)
    return FoundRun(run_dir, "running" if records.end(facts) is None else "ending", records, facts, "", elapsed_s)


def over(run_dir: Path, records: Followed, facts: ProcessFacts | None) -> FoundRun:
    """A run whose process is gone, by what was read of it; `facts` are what was last known of the process."""
    named = written(run_dir)  # a process that could still say what went wrong has removed its name
    if not records.begun(facts):
        facts = named  # it trained nothing: what was before it counts
    begun, end = records.begun(facts), records.end(facts)
    if end is not None:
        return FoundRun(run_dir, end.reason, records, facts, end.message, end.seconds)
    said = complaint(run_dir) if named is None and _log_is_newer(run_dir) else ""
    if said.startswith(_INTERRUPTED):
        said = ""
    return FoundRun(
        run_dir, "failed" if said else "interrupted", records, facts, said, records.now_s if begun else None
    )


def _log_is_newer(run_dir: Path) -> bool:
    """Whether the log is of the run that the last records are of."""
    log, records = run_dir / LOG, run_dir / RECORDS
    return log.is_file() and (not records.is_file() or log.stat().st_mtime >= records.stat().st_mtime)

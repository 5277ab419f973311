"""What happened in a run, as typed records: one JSON line each in records.jsonl, tagged with its `type`.

Times are seconds since the run started, on the coordinator's monotonic clock. JSON has no NaN and no infinity: they are
written as the strings "nan", "inf" and "-inf" and read back as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from potluck.errors import InputError
from potluck.journal import Journal, read_journal
from potluck.types import IdleReason, Plan, RoundRecord, Value

RECORDS = "records.jsonl"


class RunStarted(Value, frozen=True, kw_only=True, tag="run_started"):
    """Training begins, or goes on after a restart of the coordinator."""

    version: Literal[1] = 1
    round: int  # the first to be trained
    rounds: int  # of the whole run
    samples: int  # size of the data set
    batch_size: int
    micro_batch_size: int
    seed: int
    program: str  # digest
    devices: tuple[str, ...]
    at_s: float = 0.0


class PlanAdopted(Value, frozen=True, kw_only=True, tag="plan_adopted"):
    """A plan comes into force, and why."""

    term: int
    round: int
    plan: Plan
    reason: str
    at_s: float


class IdleDevices(Value, frozen=True, kw_only=True, tag="idle_devices"):
    """Who is here and has no part in the plan in force: said after its `PlanAdopted`, and when anything changes."""

    term: int
    round: int
    idle: dict[str, IdleReason]  # all of them, of which there may be none any more
    at_s: float


class EvaluationRecord(Value, frozen=True, kw_only=True, tag="evaluation"):
    """The model judged on the evaluation set."""

    round: int  # rounds committed before it
    epoch: int
    samples: int
    loss: float
    metrics: dict[str, float]
    best: bool  # better than every one before
    seconds: float
    at_s: float


class IncidentRecord(Value, frozen=True, kw_only=True, tag="incident"):
    """Something went wrong, or changed, and what was done about it."""

    kind: Literal[
        "lost", "slow", "joined", "left", "plan", "link", "not_finite", "checkpoint", "coordinator", "inexact"
    ]
    round: int
    device: str | None
    what: str  # one sentence
    action: str  # one sentence
    at_s: float  # when it was noticed
    detection_s: float | None = None  # from the last sign of life to the suspicion
    recovery_s: float | None = None  # from then until everybody was ready to go on
    replayed_rounds: int = 0
    moved_bytes: int = 0
    samples: int = 0  # of its own, that a device came with to a parameter server


class CheckpointRecord(Value, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint was written."""

    round: int
    bytes: int
    seconds: float
    at_s: float


class CopyRecord(Value, frozen=True, kw_only=True, tag="copy"):
    """The state of every stage is in two places: a device may vanish, and only the rounds since then are repeated."""

    round: int  # rounds committed before it
    seconds: float  # from the order to the last device that had it
    period_s: float  # from this copy's beginning to that of the next
    at_s: float


class SyncAdopted(Value, frozen=True, kw_only=True, tag="sync_adopted"):
    """Devices train on data of their own around a parameter server; how often they push is decided by this policy."""

    round: int
    policy: str
    samples: dict[str, int]  # of each device that begins
    reason: str
    at_s: float


class PushRecord(Value, frozen=True, kw_only=True, tag="push"):
    """A device's difference was applied to the weights, or left out and why."""

    version: int  # of the weights with it
    device: str
    round: int  # batches that all devices together have trained, so far
    epoch: int
    steps: int
    samples: int
    loss: float | None
    skipped: str
    reason: str  # why the device pushes when it does, or may go on when it does
    cpu_s: float  # of the steps that went into it
    at_s: float
    held_out_loss: float | None = None  # by samples that it keeps to judge by; None: not judged, or not finite
    held_out_samples: int = 0  # how many those are; 0: not judged
    held_out_version: int = 0  # of the weights that it judged


class PaceRecord(Value, frozen=True, kw_only=True, tag="pace"):
    """The policy decided how often devices push, and why."""

    round: int
    loss: float  # that it was told
    reason: str
    at_s: float


class RunEnded(Value, frozen=True, kw_only=True, tag="run_ended"):
    """Training is over."""

    round: int  # rounds committed
    reason: Literal["finished", "stopped", "early", "failed"]
    message: str
    seconds: float
    at_s: float


Happened = EvaluationRecord | IncidentRecord | CheckpointRecord | CopyRecord
Pushing = SyncAdopted | PushRecord | PaceRecord
Record = RunStarted | PlanAdopted | IdleDevices | RoundRecord | Happened | Pushing | RunEnded


def encode(record: Record) -> bytes:
    """The record as one JSON line, without its end."""
    return msgspec.json.encode(_tagged(msgspec.to_builtins(record)))


def decode(line: bytes) -> Record:
    """The record of a JSON line; an InputError if it is none."""
    try:
        # Not strict, so that the strings "nan" and "inf" become numbers again.
        record: Record = msgspec.convert(msgspec.json.decode(line), type=Record, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"not a record: {error}; give a {RECORDS} written by this version") from error
    return record


class RecordLog:
    """records.jsonl, open for appending. Every record can be read as soon as `append` returns."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def append(self, record: Record) -> None:
        """Add a record, whole or not at all; a PotluckError if there is no room for it."""
        self._journal.append(encode(record), durable=False)

    def close(self) -> None:
        self._journal.close()


def read(path: Path) -> Iterator[Record]:
    """Every record of a file, oldest first; an incomplete last line is left out."""
    records, _ = read_from(path, 0)
    return iter(records)


def read_from(path: Path, offset: int) -> tuple[list[Record], int]:
    """The complete records from a byte offset on, and the offset to go on from, for following a run."""
    return read_journal(path, decode, offset)


def _tagged(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: _tagged(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    return value


def end_of(path: Path) -> RunEnded | None:
    """The last thing in a file of records, if that is that the run ended."""
    try:
        return msgspec.json.decode(path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2], type=RunEnded)
    except (OSError, msgspec.MsgspecError):
        return None


def has_ended(path: Path) -> bool:
    """Whether the last thing in a file of records is that the run ended, and not by an error."""
    end = end_of(path)
    return end is not None and end.reason != "failed"

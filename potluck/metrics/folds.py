"""What the records of a run add up to. Pure: records in, numbers out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from potluck.metrics.records import EvaluationRecord, IncidentRecord, Record, RunEnded
from potluck.types import RoundRecord


@dataclass(frozen=True)
class Summary:
    """A run in numbers."""

    rounds: int  # committed, each counted once
    samples: int  # used by them
    round_seconds: float  # spent in rounds, replayed ones included
    throughput: float  # samples that count per second in rounds; a replay costs time and adds no samples
    loss: float | None  # of the last round
    evaluation: EvaluationRecord | None  # the last one
    best: EvaluationRecord | None
    incidents: int
    replayed_rounds: int
    ended: str | None  # why, or None while it runs


def rounds(records: Iterable[Record]) -> list[RoundRecord]:
    """The committed rounds in order, each once: where one was replayed, its last record."""
    return [r for _, r in sorted({r.round: r for r in records if isinstance(r, RoundRecord)}.items())]


def throughput(records: Iterable[Record], *, last: int | None = None) -> float:
    """Samples per second over the committed rounds, or over only the last few of them; 0 before the first."""
    chosen = rounds(records)
    if last is not None:
        chosen = chosen[max(0, len(chosen) - last) :]
    seconds = sum(r.seconds for r in chosen)
    return sum(r.samples for r in chosen) / seconds if seconds > 0 else 0.0


def usual_round_s(records: Iterable[Record], term: int) -> float | None:
    """Median seconds of the full rounds of a term, the first two left out: they fill caches and queues."""
    found = [r for r in rounds(records) if r.term == term]
    full = max((r.samples for r in found), default=0)
    seconds = [r.seconds for r in found[2:] if r.samples == full]
    return statistics.median(seconds) if seconds else None


def summary(records: Iterable[Record]) -> Summary:
    kept = list(records)
    committed = rounds(kept)
    every = [r for r in kept if isinstance(r, RoundRecord)]
    evaluations = [r for r in kept if isinstance(r, EvaluationRecord)]
    ends = [r for r in kept if isinstance(r, RunEnded)]
    samples = sum(r.samples for r in committed)
    seconds = sum(r.seconds for r in every)
    return Summary(
        rounds=len(committed),
        samples=samples,
        round_seconds=seconds,
        throughput=samples / seconds if seconds > 0 else 0.0,
        loss=committed[-1].loss if committed else None,
        evaluation=evaluations[-1] if evaluations else None,
        best=next((r for r in reversed(evaluations) if r.best), None),
        incidents=sum(isinstance(r, IncidentRecord) for r in kept),
        replayed_rounds=len(every) - len(committed),
        ended=ends[-1].reason if ends else None,
    )

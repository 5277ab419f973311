"""What the records of a run add up to. Pure: records in, numbers out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from potluck.metrics.records import Record
from potluck.types import RoundRecord


def rounds(records: Iterable[Record]) -> list[RoundRecord]:
    """The committed rounds in order, each once: where one was replayed, its last record."""
    return [r for _, r in sorted({r.round: r for r in records if isinstance(r, RoundRecord)}.items())]


def throughput(records: Iterable[Record]) -> float:
    """Samples per second over the committed rounds; 0 before the first."""
    chosen = rounds(records)
    seconds = sum(r.seconds for r in chosen)
    return sum(r.samples for r in chosen) / seconds if seconds > 0 else 0.0


def usual_round_s(records: Iterable[Record], term: int) -> float | None:
    """Median seconds of the full rounds of a term, the first two left out: they fill caches and queues."""
    found = [r for r in rounds(records) if r.term == term]
    full = max((r.samples for r in found), default=0)
    seconds = [r.seconds for r in found[2:] if r.samples == full]
    return statistics.median(seconds) if seconds else None

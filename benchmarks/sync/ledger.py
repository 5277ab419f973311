"""Whether every push counted once: what a run's server kept, against what the run said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from potluck.metrics.records import PushRecord
from potluck.paramserver.applied_pushes import Entry, missing_and_repeated


class Audited(NamedTuple):
    """What is wrong."""

    lost: int
    doubled: int


def audited(ledger: Sequence[Entry], said: Sequence[PushRecord]) -> Audited:
    """Compares the ledger, which has a line before a push changes the weights, with the run's records, which have one
    after; in a run whose server did not restart.

    Workers number their own pushes, and do not write down anywhere how many they made: that is seen by gaps and
    repeats in their numbers, which only the ledger has. Versions of the weights are in both, and each of them is of
    one push. Lost: a gap in either, or a push that only one of them has, or has with other samples. Doubled: a push
    that one of them has more than once.
    """
    kept = Counter((e.version, e.push.worker, e.push.steps, e.push.samples) for e in ledger)
    told = Counter((r.version, r.device, r.steps, r.samples) for r in said)
    missing, repeated = missing_and_repeated(list(ledger))
    gaps = max(missing, _gaps({version for version, *_ in (*kept, *told)}))  # one push may be seen by both
    lost = gaps + len(kept.keys() ^ told.keys())
    doubled = max(repeated, _repeats(e.version for e in ledger)) + _repeats(r.version for r in said)
    return Audited(lost, doubled)


def _gaps(versions: set[int]) -> int:
    """Versions that neither of them explains."""
    return max(versions, default=0) - len(versions)


def _repeats(versions: Iterable[int]) -> int:
    return sum(count - 1 for count in Counter(versions).values())

"""The ledger: which samples each committed round used, one entry each. `coordinator/run_folder` has the file.

`control/audit.py` proves from it, with code of its own, that every sample was used exactly once.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Literal

from potluck.types import Value

Runs = tuple[int | tuple[int, int], ...]


class RunFacts(Value, frozen=True, kw_only=True):
    """What the audit needs to know of a run, written once at its start."""

    version: Literal[1] = 1
    samples: int  # size of the data set
    batch_size: int
    epochs: int | None
    rounds: int | None
    seed: int
    staleness: int = 0  # steps that gradients are late
    run: str = ""  # by which devices that hold its states know it


class LedgerEntry(Value, frozen=True, kw_only=True):
    """One committed round."""

    round: int
    epoch: int
    term: int
    samples: Runs  # ids in order; [a, b] stands for a, a+1, …, b-1
    loss: str  # float.hex: exactly the number
    digest: str  # of the losses of the round's parts


def entry(*, round: int, epoch: int, term: int, ids: Sequence[int], loss: float, digest: str) -> LedgerEntry:
    return LedgerEntry(round=round, epoch=epoch, term=term, samples=pack(ids), loss=float(loss).hex(), digest=digest)


def loss_digest(losses: Iterable[float]) -> str:
    """Digest of the losses of a round's micro-batches, in order; equal only if every bit is."""
    values = list(losses)
    return hashlib.sha256(struct.pack(f"<{len(values)}d", *values)).hexdigest()[:32]


def pack(ids: Sequence[int]) -> Runs:
    """Ids in order, with stretches of three or more that count upwards written as [first, after the last]."""
    packed: list[int | tuple[int, int]] = []
    start = 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and ids[end] == ids[end - 1] + 1:
            continue
        run = ids[start:end]
        packed.extend([(run[0], run[-1] + 1)] if len(run) >= 3 else run)
        start = end
    return tuple(packed)


def unpack(samples: Runs) -> tuple[int, ...]:
    """The ids that `pack` was given."""
    ids: list[int] = []
    for item in samples:
        ids.extend((item,) if isinstance(item, int) else range(*item))
    return tuple(ids)

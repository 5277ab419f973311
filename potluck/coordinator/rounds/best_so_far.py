"""Which evaluation of a run was the best."""

from __future__ import annotations

import math
from pathlib import Path

from potluck.errors import InputError
from potluck.job.job import Job
from potluck.metrics.records import RECORDS, EvaluationRecord, read
from potluck.tensors.checkpoint import Best, best


class BestSoFar:
    """Which evaluation was the best so far, and whether to go on."""

    def __init__(self, job: Job, before: Best | None, since: int) -> None:
        self._metric, self._higher = job.best_metric
        self._patience = job.patience
        self._best = before.value if before is not None and before.metric == self._metric else None
        self._since = since if self._best is not None else 0

    def see(self, round: int, loss: float, metrics: dict[str, float]) -> Best | None:
        """The new best, or None."""
        value = loss if self._metric == "loss" else metrics.get(self._metric)
        if value is not None and not math.isfinite(value):
            return None
        if value is None:
            raise InputError(f"job: best {self._metric!r} is not among the metrics {', '.join(metrics) or '(none)'}")
        if self._best is None or (value > self._best if self._higher else value < self._best):
            self._best, self._since = value, 0
            return Best(round=round, metric=self._metric, value=value)
        self._since += 1
        return None

    @property
    def patience_is_over(self) -> bool:
        return self._patience is not None and self._since >= self._patience


def seen_before(run_dir: Path, first_round: int) -> tuple[Best | None, int]:
    """The best evaluation of the rounds that a resumed run keeps, and how many came after it."""
    known = best(run_dir) if first_round else None
    if known is None or known.round > first_round:
        return None, 0
    evaluations = [r for r in read(run_dir / RECORDS) if isinstance(r, EvaluationRecord)]
    return known, len({r.round for r in evaluations if known.round < r.round <= first_round})

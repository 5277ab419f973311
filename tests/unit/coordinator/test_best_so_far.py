"""Which evaluation was the best, and when patience is over."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from potluck.coordinator.rounds.best_so_far import BestSoFar, seen_before
from potluck.errors import InputError
from potluck.metrics.records import RECORDS, EvaluationRecord, RecordLog
from potluck.tensors import checkpoint
from potluck.tensors.checkpoint import Best, Position
from tests.unit.coordinator.small_job import small_job

EVALUATION = small_job().data


def judge(before: Best | None = None, since: int = 0, *, best: str | None = None, patience: int = 2) -> BestSoFar:
    metrics = {"accuracy": lambda outputs, labels: 0.0}
    return BestSoFar(small_job(eval_data=EVALUATION, metrics=metrics, best=best, patience=patience), before, since)


def test_a_lower_loss_is_better_and_an_equal_one_is_not() -> None:
    it = judge()
    found = [it.see(round, loss, {}) for round, loss in enumerate((2.0, 3.0, 1.0, 1.0))]
    assert [best and (best.round, best.value) for best in found] == [(0, 2.0), None, (2, 1.0), None]


def test_a_metric_is_better_when_it_is_higher_unless_it_is_named_with_a_minus() -> None:
    for best, wanted in (("accuracy", [True, True, False]), ("-accuracy", [True, False, True])):
        it = judge(best=best)
        assert [it.see(0, 0.0, {"accuracy": a}) is not None for a in (0.5, 0.75, 0.25)] == wanted


def test_patience_is_over_after_so_many_that_are_no_better_and_a_better_one_begins_it_again() -> None:
    it = judge(patience=2)
    seen = []
    for loss in (3.0, 4.0, 2.0, 2.0, 2.0):
        it.see(0, loss, {})
        seen.append(it.patience_is_over)
    assert seen == [False, False, False, False, True]


def test_what_is_not_finite_is_never_the_best_and_costs_no_patience() -> None:
    it = judge(patience=1)
    assert it.see(0, math.nan, {}) is None
    assert not it.patience_is_over
    assert it.see(1, 5.0, {}) is not None


def test_a_resumed_run_goes_on_from_its_best_unless_that_was_of_another_metric() -> None:
    before = Best(round=4, metric="loss", value=1.0)
    resumed = judge(before, 1)
    assert resumed.see(5, 1.5, {}) is None
    assert resumed.patience_is_over
    other = judge(before, 1, best="accuracy")
    assert other.see(5, 1.5, {"accuracy": 0.1}) is not None


def test_a_metric_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match=r"best 'accuracy' is not among the metrics f1"):
        judge(best="accuracy").see(0, 1.0, {"f1": 1.0})


def test_evaluations_after_the_best_count_up_to_where_the_run_goes_on(tmp_path: Path) -> None:
    position = Position(round=2, epoch=0, index_in_epoch=0, seed=0, sample_count=4, batch_size=2, program="p")
    checkpoint.write(tmp_path, position, {"w": torch.zeros(1)}, {})
    known = Best(round=2, metric="loss", value=1.0)
    checkpoint.mark_best(tmp_path, known)
    log = RecordLog(tmp_path / RECORDS)
    for round in (1, 2, 3, 4, 4, 5):
        log.append(
            EvaluationRecord(round=round, epoch=0, samples=1, loss=1.0, metrics={}, best=False, seconds=0, at_s=0)
        )
    log.close()
    assert seen_before(tmp_path, 4) == (known, 2)
    assert seen_before(tmp_path, 2) == (known, 0)
    assert seen_before(tmp_path, 1) == (None, 0)  # the best is of a round that is trained again
    assert seen_before(tmp_path, 0) == (None, 0)

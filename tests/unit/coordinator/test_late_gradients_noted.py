"""Whoever trains with late gradients by an optimizer that does not bear them is told, once, in one line."""

from __future__ import annotations

import dataclasses

from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.job.optimizers import AdamW, NAdam, Optimizer
from tests.unit.coordinator.small_job import small_job


def said(optimizer: Optimizer, staleness: int) -> list[str]:
    notes: list[str] = []
    prepare_job(dataclasses.replace(small_job(), optimizer=optimizer, staleness=staleness), notes.append)
    return notes


def test_an_optimizer_that_bears_late_gradients_badly_is_named_with_what_to_take_instead() -> None:
    [line] = said(AdamW(lr=1e-3), 1)
    assert "AdamW" in line
    assert "one step late" in line
    assert "\n" not in line


def test_there_is_nothing_to_say_in_lock_step_nor_of_one_that_bears_them() -> None:
    assert said(AdamW(lr=1e-3), 0) == []
    assert said(NAdam(lr=1e-3), 1) == []

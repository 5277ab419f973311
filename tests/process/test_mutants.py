"""The check that checks the checks: five faults, each patched into one device's shipped code, are each noticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from potluck.commands.verifying import compare
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.training import run_on
from potluck.errors import PotluckError
from potluck.job.job import Job
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import case_job, cut
from tests.process.agents import fleet_of

ROUNDS = 4


def small_job(seed: int) -> Job:
    case = next(c for c in core_cases() if c.name == "residual_cnn")
    return dataclasses.replace(case_job(case, ROUNDS), seed=seed)


def equal_after_a_stopped_run(mutant: str, folder: Path) -> bool:
    """Whether a run on three agents, the middle one with the fault, equals the uncut run.

    Before it, another run is stopped half-way: samples sent ahead for its next rounds are still under way.
    """
    torch.set_num_threads(1)
    modules = [["tests.process.mutant_agent", "none"] for _ in range(3)]
    for index in (0, 1, 2) if mutant == "term_check_removed" else (1,):
        modules[index] = ["tests.process.mutant_agent", mutant]
    with fleet_of(modules) as (live, _):
        options = Options(run_dir=folder / "stopped", timeout_s=60.0, should_stop=lambda: True)
        first = prepare_job(small_job(seed=11))
        stopped = run_on(live, first, cut(first.facts, 3), options)
        assert stopped.reason == "stopped"
        prepared = prepare_job(small_job(seed=5))
        try:
            return compare(live, prepared, cut(prepared.facts, 3), Options(timeout_s=30.0)).none
        except PotluckError:
            return False


def test_without_a_fault_the_runs_are_equal(tmp_path: Path) -> None:
    assert equal_after_a_stopped_run("none", tmp_path)


@pytest.mark.parametrize("mutant", ["momentum_dropped", *(pytest.param(m, marks=pytest.mark.full) for m in (
    "stale_copy", "micro_batch_skipped", "micro_batch_twice", "term_check_removed",
))])  # fmt: skip
def test_a_fault_makes_them_unequal(mutant: str, tmp_path: Path) -> None:
    assert not equal_after_a_stopped_run(mutant, tmp_path)

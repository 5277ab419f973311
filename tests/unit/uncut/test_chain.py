"""The stages of a plan in one process: uncut where nothing rounds, and rounded at the cuts where a codec does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.program.layout import PlanLayout
from potluck.types import Plan
from potluck.uncut.chain import StageChain
from potluck.uncut.uncut_run import Reference, UncutRun, reference_for
from tests.extending.half_precision import Half
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import MICRO_BATCH, case_job, cut

CASES = {case.name: case for case in core_cases()}


def trained(run: Reference[Any], prepared: PreparedJob) -> dict[str, torch.Tensor]:
    """Everything the run holds after two rounds."""
    data = prepared.job.data
    names = [s.name for s in prepared.built.programs.train.sources if s.kind == "input"]
    rows = [data[i] for i in range(MICRO_BATCH)]
    columns = [torch.stack([torch.as_tensor(row[c]) for row in rows]) for c in range(2)]
    for number in range(2):
        run.round(number, [(dict(zip(names, columns, strict=True)), torch.ones(MICRO_BATCH))] * 2)
    state = run.stage.state()
    return {**state.parameters, **state.buffers, **state.optimizer}


def unequal(plan: Plan, prepared: PreparedJob, run: Reference[Any]) -> list[str]:
    """What differs from the uncut model."""
    state, programs = dict(prepared.built.state), prepared.built.programs
    whole = UncutRun(programs, state, prepared.optimizer, seed=3, clip_norm=0.5, lanes=plan)
    expected, found = trained(whole, prepared), trained(run, prepared)
    assert set(found) == set(expected)
    return [name for name in found if not torch.equal(found[name], expected[name])]


@pytest.mark.parametrize("name", ["residual_cnn", "unet"])
def test_stages_in_a_row_have_the_bits_of_the_model_until_a_codec_rounds(name: str) -> None:
    prepared = prepare_job(case_job(CASES[name], 1))
    plan, programs, state = cut(prepared.facts, 3), prepared.built.programs, dict(prepared.built.state)
    layout = PlanLayout(programs, plan)
    raw = Reference(StageChain(layout, state, prepared.optimizer, 3), programs, 0.5, layout)
    assert unequal(plan, prepared, raw) == []
    rounds = replace(plan, stages=(replace(plan.stages[0], codec=Half.name), *plan.stages[1:]))
    rounded = reference_for(rounds, programs, state, prepared.optimizer, seed=3, clip_norm=0.5)
    assert len(unequal(plan, prepared, rounded)) > len(programs.train.sources) / 4


def test_only_a_codec_that_rounds_takes_the_reference_apart() -> None:
    prepared = prepare_job(case_job(CASES["unet"], 1))
    plan, state = cut(prepared.facts, 2), dict(prepared.built.state)
    found = reference_for(plan, prepared.built.programs, state, prepared.optimizer, seed=3, clip_norm=None)
    assert isinstance(found, UncutRun)

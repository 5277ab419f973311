"""A job made ready: its model as programs, what planning needs to know of them, and the state to start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from potluck.compute.execution.executions import execution_named
from potluck.coordinator.samples.check_fit import check_fit
from potluck.coordinator.samples.loading import first_samples
from potluck.job.job import Job
from potluck.job.late_gradients import late_gradients_advice
from potluck.job.optimizer_state import slots
from potluck.job.optimizers import Optimizer
from potluck.job.parameter_groups import resolve
from potluck.model.build import PROBE_ROWS, BuiltModel, as_module, build
from potluck.program.blocks import facts as facts_of
from potluck.tensors.snapshot import tensor_digest
from potluck.types import ModelFacts


@dataclass(frozen=True)
class PreparedJob:
    """A job turned into programs, facts and initial state."""

    job: Job
    built: BuiltModel
    facts: ModelFacts
    optimizer: Optimizer
    data_digest: str  # of the first samples: a resumed run must see the same data


def prepare_job(job: Job, note: Callable[[str], None] = lambda text: None) -> PreparedJob:
    """Builds the model and cuts it, from the first samples of the data. What the user should know of it is noted."""
    execution_named(job.kernels)  # refuses what nobody here could run, before anything is built
    torch.manual_seed(job.seed)
    module, hand_cut = as_module(job.model)
    first = first_samples(job, PROBE_ROWS)
    check_fit(module, job, first.feeds)
    built = build(
        module, job.loss, first.feeds, first.weights, hand_cut=hand_cut, eval_reduce=job.reduce,
        judged=isinstance(job.data, str),
    )  # fmt: skip
    if built.outputs.left_out:
        note(f"evaluation leaves out what is no tensor: {', '.join(built.outputs.left_out)}")
    built = replace(built, programs=built.programs.with_kernels(job.kernels))
    optimizer = resolve(job.optimizer, module)
    if advice := late_gradients_advice(optimizer, job.staleness):
        note(advice)
    digest = tensor_digest({**first.feeds, "weights": first.weights})
    return PreparedJob(job, built, facts_of(built.programs, slots(optimizer)), optimizer, digest)

"""What the job's own metrics make of a model's outputs."""

from __future__ import annotations

from typing import Any

import torch

from potluck.errors import InputError
from potluck.job.job import Job
from potluck.model.forms import outputs_as_given
from potluck.program.program import Program


def measure(job: Job, outputs: Any, labels: torch.Tensor) -> dict[str, float]:
    """The job's metrics; an InputError names the one that fails."""
    found = {}
    for name, metric in job.metrics.items():
        try:
            found[name] = float(metric(outputs, labels))
        except Exception as error:  # the user's function may fail in any way
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise InputError(f"job: metric {name!r} fails on {len(labels)} samples: {what}; correct it") from error
    return found


def summed_up(
    job: Job, program: Program, outputs: list[list[torch.Tensor]], labels: list[torch.Tensor],
    losses: list[tuple[float, float]],
) -> tuple[float, dict[str, float], int]:  # fmt: skip
    """Loss and metrics over all batches, given each one's loss and weight, and how many samples they have."""
    axes = [sample_axis(program, index) for index in range(len(program.outputs))]
    joined = [torch.cat(parts, axis) for axis, parts in zip(axes, zip(*outputs, strict=True), strict=True)]
    label = torch.cat(labels)
    weight = sum(w for _, w in losses)
    loss = sum(value * w for value, w in losses) / weight if weight else float("nan")
    return loss, measure(job, outputs_as_given(program, joined), label), len(label)


def sample_axis(program: Program, index: int) -> int:
    """The axis along which an output holds its samples."""
    axis = program.values[program.outputs[index]].batch_axis
    if axis is None:
        name = program.output_names[index] if program.output_names else ""
        raise InputError(
            f"the model's output {name}{' ' if name else ''}holds no samples along any axis; evaluation needs a row of "
            "each output per sample: return only such in evaluation, or give Job.reduce"
        )
    return axis

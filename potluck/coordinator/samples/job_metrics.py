"""What the job's own loss and metrics make of a model's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from potluck.advice import one_line
from potluck.errors import InputError
from potluck.job.job import Job
from potluck.model.outputs import OutputForm
from potluck.model.user_functions import call_function
from potluck.program.program import Program


def measure(job: Job, outputs: Any, labels: torch.Tensor) -> dict[str, float]:
    """The job's metrics; an InputError names the one that fails."""
    found = {}
    for name, metric in job.metrics.items():
        try:
            found[name] = float(call_function("metric", metric, outputs, labels))
        except InputError as error:
            raise InputError(f"job: metric {name!r}: {error}") from error
        except Exception as error:  # the user's function may fail in any way
            what = one_line(error)
            raise InputError(f"job: metric {name!r} fails on {len(labels)} samples: {what}; correct it") from error
    return found


class Gathered:
    """Outputs of the evaluation program, part by part, and the loss of each part."""

    def __init__(self, job: Job, program: Program, form: OutputForm) -> None:
        self._job, self._form = job, form
        self._axes = [sample_axis(job, program, index) for index in range(len(program.outputs))]
        self._parts: list[Sequence[torch.Tensor]] = []
        self._labels: list[torch.Tensor] = []
        self._weights: list[float] = []
        self._losses: list[float] = []

    def add(self, tensors: Sequence[torch.Tensor], labels: torch.Tensor, weight: float) -> None:
        """One part of the samples, and how much they count."""
        self._parts.append(tensors)
        self._labels.append(labels)
        self._weights.append(weight)
        counts = weight and self._job.reduce is None
        self._losses.append(float(self._job.loss(self._form.make(tensors), labels)) if counts else 0.0)

    def summed_up(self) -> tuple[float, dict[str, float], int]:
        """Loss and metrics over all parts, and how many samples they have."""
        joined = [self._joined(*each) for each in zip(self._axes, zip(*self._parts, strict=True), strict=True)]
        labels = torch.cat(self._labels)
        loss = self._mean(self._losses) if self._job.reduce is None else float("nan")
        return loss, measure(self._job, self._form.make(joined), labels), len(labels)

    def _joined(self, axis: int | None, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """An output of all samples: its rows, or the mean where it is one number, as the model's own loss is."""
        if axis is None:
            return torch.tensor(self._mean([float(p) for p in parts]), dtype=parts[0].dtype)
        return torch.cat([*parts], axis)

    def _mean(self, numbers: Sequence[float]) -> float:
        """Over the parts, by how much they count."""
        weight = sum(self._weights)
        counted = zip(numbers, self._weights, strict=True)
        return sum(number * w for number, w in counted if w) / weight if weight else float("nan")


def sample_axis(job: Job, program: Program, index: int) -> int | None:
    """The axis along which an output holds its samples; None of a single number of the model's own, such as a loss."""
    value = program.values[program.outputs[index]]
    axis, number = value.batch_axis, not value.shape and value.dtype.startswith(("float", "bfloat"))
    if axis is None and (job.reduce is not None or not number):
        name = program.output_names[index] if program.output_names else ""
        raise InputError(
            f"the model's output {name}{' ' if name else ''}holds no samples along any axis; evaluation needs a row of "
            "each output per sample: return only such in evaluation, or give Job.reduce"
        )
    return axis

"""The job's loss and metrics over outputs that come in parts."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from potluck.coordinator.samples.job_metrics import Gathered, measure, sample_axis
from potluck.errors import InputError
from potluck.model.outputs import take_apart
from tests.unit.coordinator.small_job import prepared, small_job

EVALUATION = small_job().data


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    return float((outputs.argmax(1) == labels).float().mean())


def gathered(**more: Any) -> Gathered:
    form, _ = take_apart(torch.zeros(2, 2))
    return Gathered(small_job(eval_data=EVALUATION, **more), prepared().built.programs.eval, form)


@pytest.mark.parametrize("sizes", [(6,), (2, 4), (1, 1, 1, 3)])
def test_parts_give_the_loss_and_metrics_of_the_whole(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    outputs, labels = torch.randn(6, 2), torch.arange(6) % 2
    it, start = gathered(metrics={"accuracy": accuracy}), 0
    for size in sizes:
        part = slice(start, start + size)
        it.add([outputs[part]], labels[part], float(size))
        start += size
    loss, metrics, samples = it.summed_up()
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, labels)))
    assert metrics == {"accuracy": accuracy(outputs, labels)}
    assert samples == 6


def test_a_part_that_does_not_count_is_not_asked_for_its_loss() -> None:
    asked: list[int] = []

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        asked.extend(labels.tolist())
        return torch.tensor(2.0)

    form, _ = take_apart(torch.zeros(2, 2))
    it = Gathered(replace(small_job(), loss=loss), prepared().built.programs.eval, form)
    it.add([torch.zeros(1, 2)], torch.tensor([1]), 1.0)
    it.add([torch.zeros(1, 2)], torch.tensor([0]), 0.0)
    assert it.summed_up()[0] == 2.0
    assert asked == [1]


def test_with_reduce_there_is_no_loss() -> None:
    it = gathered(reduce=lambda outputs, labels: outputs, metrics={"accuracy": accuracy})
    it.add([torch.zeros(2, 2)], torch.zeros(2, dtype=torch.long), 2.0)
    loss, metrics, _ = it.summed_up()
    assert math.isnan(loss)
    assert metrics == {"accuracy": 1.0}


def test_a_metric_that_fails_is_named_with_why() -> None:
    def broken(outputs: object, labels: object) -> float:
        raise ValueError("no such class")

    job = small_job(eval_data=EVALUATION, metrics={"f1": broken})
    with pytest.raises(InputError, match=r"metric 'f1' fails on 2 samples: .*no such class"):
        measure(job, torch.zeros(2, 2), torch.zeros(2))


@pytest.mark.parametrize(
    ("shape", "dtype", "axis", "reduces", "wanted"),
    [((4, 2), "float32", 0, False, 0), ((2, 4), "int64", 1, True, 1), ((), "float32", None, False, None)],
)
def test_an_output_has_its_samples_along_an_axis_or_is_one_number(
    shape: tuple[int, ...], dtype: str, axis: int | None, reduces: bool, wanted: int | None
) -> None:
    assert axis_of(shape, dtype, axis, reduces=reduces) == wanted


@pytest.mark.parametrize(
    ("shape", "dtype", "reduces"), [((3,), "float32", False), ((), "int64", False), ((), "float32", True)]
)
def test_any_other_output_is_refused_by_name(shape: tuple[int, ...], dtype: str, reduces: bool) -> None:
    with pytest.raises(InputError, match=r"output logits holds no samples along any axis.*Job\.reduce"):
        axis_of(shape, dtype, None, reduces=reduces)


def axis_of(shape: tuple[int, ...], dtype: str, axis: int | None, *, reduces: bool) -> int | None:
    """The axis of samples of an output like this."""
    value = SimpleNamespace(shape=shape, dtype=dtype, batch_axis=axis)
    program = SimpleNamespace(values={7: value}, outputs=[7], output_names=["logits"])
    job = small_job(eval_data=EVALUATION, reduce=(lambda outputs, labels: outputs) if reduces else None)
    return sample_axis(job, cast(Any, program), 0)

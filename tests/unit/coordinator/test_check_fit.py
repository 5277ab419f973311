"""What does not fit is found before anything is started."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import potluck
from potluck.coordinator.samples.check_fit import check_fit
from potluck.coordinator.samples.loading import first_samples
from potluck.errors import InputError


def job(**changes: Any) -> potluck.Job:
    x, y = torch.randn(40, 4), torch.arange(40) // 20
    base = potluck.Job(
        model=nn.Linear(4, 2), loss=F.cross_entropy, optimizer=potluck.SGD(lr=0.1), data=(x, y), eval_data=(x, y),
        batch_size=8, epochs=1,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def check(what: potluck.Job) -> None:
    assert isinstance(what.model, nn.Module)
    check_fit(what.model, what, first_samples(what, 4).feeds)


def no_number(out: Any, labels: Any) -> Any:
    return out


def broken(out: Any, labels: Any) -> float:
    raise KeyError("no\nsuch thing")


@pytest.mark.parametrize("metric", [no_number, broken])
def test_a_metric_that_fails_is_named_on_one_line(metric: Any) -> None:
    with pytest.raises(InputError, match=r"job: metric 'mine' fails on 32 samples: .*Error.*; correct it") as caught:
        check(job(metrics={"fine": lambda out, y: 1.0, "mine": metric}))
    assert "\n" not in str(caught.value)


def test_a_metric_that_needs_both_classes_gets_them() -> None:
    def needy(out: Any, labels: torch.Tensor) -> float:
        if len(labels.unique()) < 2:
            raise ValueError("only one class")
        return 0.0

    check(job(metrics={"needy": needy}))


def test_metrics_are_tried_on_what_reduce_gives() -> None:
    seen: list[torch.Size] = []

    def metric(hits: torch.Tensor, labels: torch.Tensor) -> float:
        seen.append(hits.shape)
        return float(hits.mean())

    check(job(metrics={"accuracy": metric}, reduce=lambda out, y: (out.argmax(1) == y).float()))
    assert seen == [(32,)]


def test_metrics_of_large_outputs_are_tried_on_a_few_samples() -> None:
    seen: list[int] = []

    class Wide(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input)[:, :1].expand(-1, 5_000_000)

    def count(out: torch.Tensor, labels: torch.Tensor) -> float:
        seen.append(len(labels))
        return 0.0

    check(job(model=Wide(4, 2), loss=lambda out, y: out[:, 0].mean(), metrics={"count": count}))
    assert seen == [3]


class Counting(nn.Linear):
    """Counts its calls in two buffers: one is written to, one is made anew."""

    written: torch.Tensor
    anew: torch.Tensor

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("written", torch.zeros(1))
        self.register_buffer("anew", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.written += 1
        self.anew = self.anew + 1
        return super().forward(x)


def test_trying_a_model_leaves_its_buffers_as_they_were() -> None:
    model = Counting()
    check(job(model=model))
    assert not model.written.any()
    assert not model.anew.any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": lambda out, y: {"loss": F.cross_entropy(out, y)}}, "loss gives a dict; return one number"),
        ({"loss": lambda out, y: F.cross_entropy(out, y).item()}, "loss gives a float; return one number as a tensor"),
        (
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            r"loss gives a tensor of shape \[4\]; .*reduction='mean'",
        ),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "loss adds up its samples"),
        (
            {"loss": lambda out: out.mean()},
            r"loss fails on the first samples of data \(outputs float32 \[4, 2\], label",
        ),
        ({"data": (torch.zeros(40, 5), torch.zeros(40).long())}, "model fails on .*as wide as a sample"),
        ({"data": (torch.zeros(40, 4), torch.zeros(40))}, r"loss fails on .*give whole numbers as labels"),
        ({"eval_data": (torch.zeros(40, 5), torch.zeros(40).long())}, "model fails on the first samples of eval_data"),
    ],
)
def test_what_fails_is_named_with_what_mends_it(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"job: {words}") as caught:
        check(job(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrap", [tuple, lambda arrays: TensorDataset(*arrays)])
def test_a_class_that_the_model_has_no_output_for_is_found_wherever_it_is(wrap: Any) -> None:
    x, y = torch.randn(40, 4), torch.zeros(40, dtype=torch.int64)
    y[17] = 2
    with pytest.raises(InputError, match=r"samples 0 and 17 of data, .*largest label .*Target 2 .*labels from 0"):
        check(job(data=wrap((x, y))))


def test_labels_that_are_no_tokens_are_no_extremes() -> None:
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    y[:10] = -100
    check(job(data=(x, y), loss=lambda out, y: F.cross_entropy(out, y.clamp(min=0))))


def test_a_model_on_an_accelerator_is_refused() -> None:
    class Elsewhere(nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            return iter([SimpleNamespace(device=torch.device("cuda", 0))])

    with pytest.raises(InputError, match=r"job: model: its weights are on cuda; leave the device out"):
        check(job(model=Elsewhere(4, 2)))

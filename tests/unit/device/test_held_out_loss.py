"""A device judges by the loss that the model in evaluation has, over all of its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from potluck.datasets.own_data import LocalData
from potluck.device.host.throttle import Throttle
from potluck.device.pushing.held_out_loss import HeldOutLoss
from potluck.device.pushing.local_trainer import LocalTrainer
from potluck.device.pushing.own_work import OwnWork
from potluck.device.pushing.push_loop import PushLoop
from potluck.job.optimizers import SGD
from potluck.model.build import build
from potluck.program.program import ProgramPair, encode
from potluck.program.validity import decode
from potluck.settings.address import HERE
from potluck.wire.messages import FeedSpec, Load, Loaded
from potluck.wire.trust import ON_THIS_MACHINE

CPU = torch.device("cpu")


class Small(nn.Module):
    """Something that is another function in training, with a counter, and a table that no file has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.table: torch.Tensor
        self.register_buffer("table", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.dropout(torch.relu(self.norm(self.first(x))), 0.5, self.training)
        found: torch.Tensor = self.last(y * self.table)
        return found


@pytest.fixture
def samples() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"input": torch.randn(21, 6), "label": torch.randint(3, (21,))}


def verdict(judge: HeldOutLoss, weights: dict[str, torch.Tensor], steps: int) -> float:
    judge.begin(7, weights)
    for _ in range(steps - 1):
        assert judge.step() is None
        assert judge.under_way
    found = judge.step()
    assert found is not None
    assert (found.version, found.samples, judge.under_way) == (7, 21, False)
    assert found.loss is not None
    return found.loss


def test_the_loss_is_that_of_the_model_in_evaluation(samples: dict[str, torch.Tensor]) -> None:
    model = Small()
    model(samples["input"])  # running statistics are not what they were at first
    built = build(model, functional.cross_entropy, samples, torch.ones(21), judged=True)
    programs = decode(encode(built.programs))
    assert programs.judge is not None
    judge = HeldOutLoss(programs.judge, samples, 8, CPU)  # in parts of 8, 8 and 5
    expected = functional.cross_entropy(model.eval()(samples["input"]), samples["label"])
    assert verdict(judge, built.state, 3) == pytest.approx(expected.item(), rel=1e-5)
    other = {name: tensor * 2 for name, tensor in built.state.items()}
    assert verdict(judge, other, 3) != pytest.approx(expected.item(), rel=1e-3)


def test_what_is_not_finite_is_said_to_be(samples: dict[str, torch.Tensor]) -> None:
    built = build(Small(), functional.cross_entropy, samples, torch.ones(21), judged=True)
    assert built.programs.judge is not None
    judge = HeldOutLoss(built.programs.judge, samples, 21, CPU)
    judge.begin(1, {name: tensor * torch.nan for name, tensor in built.state.items()})
    found = judge.step()
    assert found is not None
    assert found.loss is None


def test_who_does_not_ask_for_it_gets_no_such_program(samples: dict[str, torch.Tensor]) -> None:
    assert build(Small(), functional.cross_entropy, samples, torch.ones(21)).programs.judge is None


def loaded(programs: ProgramPair, state: dict[str, torch.Tensor], held_out: dict[str, torch.Tensor]) -> Loaded:
    """What a device says of a job, with samples to judge by."""
    arrays = {name: tensor.numpy() for name, tensor in held_out.items()}
    train: dict[str, Any] = {"input": np.zeros((16, 6), np.float32), "label": np.zeros(16, np.int64)}
    data = {"own": LocalData("own", Path(), train), "own:eval": LocalData("own:eval", Path(), arrays)}
    blobs = {"program": encode(programs), "state": save({n: t.clone() for n, t in state.items()})}
    work = OwnWork(
        "a",
        CPU,
        data,
        HERE,
        ON_THIS_MACHINE,
        Throttle(1.0),
        lambda digest, timeout_s: blobs[digest],
    )
    order = Load(
        run="r", program="program", state="state", optimizer=SGD(lr=0.1), batch_size=8, seed=0, clip_norm=None,
        feeds={"input": FeedSpec((6,), "float32"), "label": FeedSpec((), "int64")}, data="own", share="",
    )  # fmt: skip
    return work.load(order, 10.0)


def test_samples_that_cannot_be_judged_by_are_refused_at_once(samples: dict[str, torch.Tensor]) -> None:
    built = build(Small(), functional.cross_entropy, samples, torch.ones(21), judged=True)
    assert loaded(built.programs, built.state, samples).problem == ""
    strange = {**samples, "label": samples["label"] + 100}
    assert "own:eval cannot be judged by" in loaded(built.programs, built.state, strange).problem


def test_weights_as_they_are_pulled_can_be_judged(samples: dict[str, torch.Tensor]) -> None:
    built = build(Small(), functional.cross_entropy, samples, torch.ones(21), judged=True)
    assert built.programs.judge is not None
    trainer = LocalTrainer(built.programs, dict(built.state), SGD(lr=0.1), samples, batch_size=8, seed=0)
    worker = PushLoop("a", trainer, Throttle(1.0), 1.0)
    weights = worker._pulled()
    trainer.step()  # goes on while these are judged
    judge = HeldOutLoss(built.programs.judge, samples, 8, CPU)
    assert verdict(judge, weights, 3) == pytest.approx(verdict(judge, built.state, 3), rel=1e-6)
    worker.close()

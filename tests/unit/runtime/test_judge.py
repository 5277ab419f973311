"""A device judges by the loss that the model in evaluation has, over all of its samples."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.model.build import build
from potluck.model.program import decode, encode
from potluck.runtime.judge import Judge

CPU = torch.device("cpu")


class Small(nn.Module):
    """Something that is another function in training, and a table that no file has."""

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


def test_the_loss_is_that_of_the_model_in_evaluation(samples: dict[str, torch.Tensor]) -> None:
    model = Small()
    model(samples["input"])  # running statistics are not what they were at first
    built = build(model, functional.cross_entropy, samples, torch.ones(21), judged=True)
    programs = decode(encode(built.programs))
    assert programs.judge is not None
    judge = Judge(programs.judge, samples, 8, CPU)  # in parts of 8, 8 and 5
    expected = functional.cross_entropy(model.eval()(samples["input"]), samples["label"])
    assert judge.loss(built.state) == pytest.approx(expected.item(), rel=1e-5)
    assert judge.samples == 21
    other = {name: tensor * 2 for name, tensor in built.state.items()}
    assert judge.loss(other) != pytest.approx(expected.item(), rel=1e-3)


def test_who_does_not_ask_for_it_gets_no_such_program(samples: dict[str, torch.Tensor]) -> None:
    assert build(Small(), functional.cross_entropy, samples, torch.ones(21)).programs.judge is None

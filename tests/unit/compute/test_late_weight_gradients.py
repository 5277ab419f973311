"""Weight gradients that wait: the same bits, at a later moment."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from potluck.compute.runner import Rows, StageRunner, StageState
from potluck.model.build import build
from tests.unit.model.pipeline import CPU, MOMENTUM

ROWS = 6


class Convolutions(nn.Module):
    """Every kind of convolution: with and without bias, strided, dilated, in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False)
        self.strided = nn.Conv2d(8, 4, 3, stride=2)
        self.along = nn.Conv1d(4, 6, 3, padding=1)
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.strided(torch.relu(self.grouped(torch.relu(self.first(x))))).flatten(2)
        out: torch.Tensor = self.head(self.along(x).mean(2))
        return out


class Products(nn.Module):
    """Linear layers on rows and on rows of sequences, and a product written out."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(3, 8)
        self.bare = nn.Linear(8, 8, bias=False)
        self.weight, self.bias = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(5))
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.bare(torch.tanh(self.into(x.flatten(2).transpose(1, 2))))).mean(1)
        out: torch.Tensor = self.head(torch.addmm(self.bias, x, self.weight))
        return out


class Twice(nn.Module):
    """A weight that two operators use."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.again = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.again(torch.tanh(self.again(self.into(x.mean((2, 3))))))
        return out


class Spread(nn.Module):
    """A product whose bias is one number, or one row, for all outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(3, 4)
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(1))
        self.last, self.row = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.addmm(self.bias, torch.tanh(self.into(x.mean((2, 3)))), self.weight)
        return torch.addmm(self.row, hidden, self.last)


def runners(model: nn.Module) -> tuple[StageRunner, StageRunner, dict[int, torch.Tensor]]:
    """The same whole model twice, the second with late weights, and what feeds it."""
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 3, 8, 8), torch.randint(0, 2, (ROWS,))
    built = build(model, nn.functional.cross_entropy, {"input": x, "label": y}, torch.ones(ROWS, dtype=torch.float64))
    programs = built.programs
    both = [
        StageRunner(
            programs, (0, programs.train.block_count), StageState(dict(built.state), {}), MOMENTUM, 0, CPU,
            late_weights=late,
        )
        for late in (False, True)
    ]  # fmt: skip
    feeds = {s.id: {"input": x, "label": y}[s.name] for s in programs.train.sources if s.kind == "input"}
    return both[0], both[1], feeds


def step(runner: StageRunner, feeds: dict[int, torch.Tensor], j: int) -> None:
    runner.forward(
        Rows(0, j, 0, ROWS), {n: t + 0.1 * j if t.is_floating_point() else t for n, t in feeds.items()}, {}, 0.5
    )
    runner.backward(0, j, {})


@pytest.mark.parametrize(("model", "late"), [(Convolutions, 4), (Products, 3), (Twice, 0), (Spread, 0)])
def test_gradients_are_the_same_to_the_bit(model: type[nn.Module], late: int) -> None:
    whole, split, feeds = runners(model())
    for j in range(3):
        step(whole, feeds, j)
        step(split, feeds, j)
    assert len(split._owed[0, 0]) == late  # the first layer's input has no gradient: nothing is put off there
    missing = [n for n, g in split.gradients(0).items() if g is None]
    assert bool(missing) == bool(late)
    for j in range(3):
        split.weights(0, j)
    expected, found = whole.gradients(0), split.gradients(0)
    for name, gradient in expected.items():
        assert gradient is not None
        assert torch.equal(gradient, found[name]), name  # type: ignore[arg-type]


def test_an_abort_forgets_what_is_owed() -> None:
    _, split, feeds = runners(Convolutions())
    step(split, feeds, 0)
    split.abort()
    with pytest.raises(KeyError):
        split.weights(0, 0)

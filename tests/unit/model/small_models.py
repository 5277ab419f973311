"""Small models for the rules of the model chapter, and what is done with them again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.model.build import BuiltModel, build
from tests.models.case import IGNORED, Case, Inputs
from tests.unit.model.pipeline import MicroBatch, Pipeline, differing, even_cuts, uncut, uncut_tensors

WIDTH = 6


def feeds_of(case: Case, n: int, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A zoo case's samples under the names a job would give them."""
    inputs, labels = case.example(n, seed, dtype)
    return {**named(inputs), "label": labels}


def named(inputs: Inputs) -> dict[str, Tensor]:
    if isinstance(inputs, Tensor):
        return {"input": inputs}
    return {f"input{i}": t for i, t in enumerate(inputs)} if isinstance(inputs, tuple) else dict(inputs)


def weights_of(case: Case, labels: Tensor) -> Tensor:
    """How much each sample counts in the loss."""
    if case.loss_weight == "samples":
        return torch.ones(len(labels), dtype=torch.float64)
    return (labels != IGNORED).reshape(len(labels), -1).sum(1).double()


def micro_batches(case: Case, sizes: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> list[MicroBatch]:
    made = [feeds_of(case, n, seed + i, dtype) for i, n in enumerate(sizes)]
    return [(feeds, weights_of(case, feeds["label"])) for feeds in made]


def build_case(case: Case, model: nn.Module | None = None, dtype: torch.dtype = torch.float32) -> BuiltModel:
    feeds = feeds_of(case, 4, 1, dtype)
    return build(model or case.make_model(), case.loss, feeds, weights_of(case, feeds["label"]))


def vectors(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random rows with rows as labels."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, WIDTH, generator=random, dtype=torch.float64).to(dtype)
    return {"input": x, "label": torch.randn(n, WIDTH, generator=random, dtype=torch.float64).to(dtype)}


def vector_batches(sizes: Sequence[int], seed: int = 10, dtype: torch.dtype = torch.float32) -> list[MicroBatch]:
    return [(vectors(n, seed + i, dtype), torch.ones(n, dtype=torch.float64)) for i, n in enumerate(sizes)]


def build_small(model: nn.Module, loss: Callable[..., Any] = F.mse_loss, **options: Any) -> BuiltModel:
    """A model of rows → rows, built."""
    dtype = next(model.parameters()).dtype
    return build(model, loss, vectors(4, dtype=dtype), torch.ones(4, dtype=torch.float64), **options)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make()


class Layers(nn.Module):
    """Three linear layers, with whatever a test wants done between them: `step` is called as step(self, i, x)."""

    def __init__(self, step: Callable[[Any, int, Tensor], Tensor] | None = None, **extra: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.step = step
        for name, module in extra.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.step is not None:
                x = self.step(self, i, x)
        return x


def stepped(step: Callable[[Any, int, Tensor], Tensor] | None = None, **extra: Any) -> Layers:
    """The same `Layers` every time."""
    torch.manual_seed(0)
    model = Layers(step)
    for name, thing in extra.items():
        if isinstance(thing, nn.Module):
            model.add_module(name, thing)
        else:
            model.register_buffer(name, thing)
    return model


def train_eagerly(model: nn.Module, rounds: Sequence[Sequence[MicroBatch]], loss: Callable[..., Any]) -> nn.Module:
    """Plain PyTorch: what the numbers must be."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for batches in rounds:
        total = float(sum(w.double().sum() for _, w in batches))
        for feeds, weights in batches:
            value = loss(model(feeds["input"]), feeds["label"])
            value.backward(torch.full_like(value, float(weights.double().sum()) / total))
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_cut_equals_uncut(built: BuiltModel, rounds: Sequence[Sequence[MicroBatch]], stages: int) -> Pipeline:
    """Every bit of parameters, buffers and optimizer state is that of the uncut run; and something was learned."""
    programs = built.programs
    assert programs.train.block_count >= stages, f"only {programs.train.block_count} blocks"
    cut = Pipeline(programs, built.state, even_cuts(programs.train.block_count, stages))
    whole = uncut(programs, built.state)
    for number, batches in enumerate(rounds):
        cut.round(number, batches)
        judgement = whole.round(number, batches)
        assert judgement.kind == "commit"
    found = cut.tensors()
    assert differing(found, uncut_tensors(whole)) == []
    assert any(not torch.equal(found[n], t) for n, t in built.state.items() if n in found)
    return cut


def assert_equals_eager(
    built: BuiltModel, model: nn.Module, stages: int = 1, sizes: Sequence[int] = (4, 3)
) -> Pipeline:
    """Three rounds, cut and uncut and in plain PyTorch: the same bits in every entry of the state_dict."""
    rounds = [vector_batches(sizes, seed=100 * r) for r in range(3)]
    cut = assert_cut_equals_uncut(built, rounds, stages)
    train_eagerly(model.train(), rounds, F.mse_loss)
    found = cut.tensors()
    for name, tensor in model.state_dict().items():
        name = built.programs.aliases.get(name, name)
        assert torch.equal(found.get(name, built.state[name]), tensor), name
    return cut

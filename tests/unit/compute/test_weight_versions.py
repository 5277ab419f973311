"""Which weights a micro-batch is computed with: the newest in lock-step, older ones where rounds overlap."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import nn

from potluck.compute.runner import Rows, StageRunner, StageState
from potluck.compute.stash import Tap
from potluck.compute.weight_versions import OneStepLate, parted
from potluck.job.optimizers import SGD
from potluck.model.build import build
from potluck.program.carve import Carver

CPU = torch.device("cpu")
ROWS, MICRO_BATCHES, ROUNDS = 4, 2, 5
LR, MOMENTUM = 0.1, 0.9


class Small(nn.Module):
    """Convolutions, BatchNorm and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, bias=False)
        self.out = nn.Linear(4 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(torch.relu(self.norm(self.first(x)))))
        out: torch.Tensor = self.out(x.flatten(1))
        return out


def batch(round: int, j: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 * round + j)
    return torch.randn(ROWS, 3, 8, 8), torch.randint(0, 5, (ROWS,))


class How(NamedTuple):
    recompute: bool = False
    late_weights: bool = False


class Stages:
    """The whole model in two stages, and what goes between them."""

    def __init__(
        self, model: nn.Module, staleness: int, how: How, states: Sequence[StageState] = (), first: int = 0
    ) -> None:
        x, y = batch(0, 0)
        weights = torch.ones(ROWS, dtype=torch.float64)
        built = build(model, nn.functional.cross_entropy, {"input": x, "label": y}, weights)
        train = built.programs.train
        self._names = {s.id: s.name for s in train.sources if s.kind == "input"}
        end = train.block_count
        self.runners = []
        for index, blocks in enumerate(((0, end // 2), (end // 2, end))):
            piece = Carver(train).piece(*train.block_range(*blocks))
            state = StageState(
                {n: built.state[n] for n in piece.parameters}, {n: built.state[n] for n in piece.buffers}
            )
            state = states[index] if states else state
            rule = SGD(lr=LR, momentum=MOMENTUM)
            self.runners.append(
                StageRunner(
                    built.programs, blocks, state, rule, 0, CPU, staleness=staleness, recompute=how.recompute,
                    late_weights=how.late_weights, first=first,
                )
            )  # fmt: skip

    def forward(self, round: int, j: int) -> None:
        given, received = dict(zip(("input", "label"), batch(round, j), strict=True)), dict[int, torch.Tensor]()
        for runner in self.runners:
            feeds = {v: given[self._names[v]] for v in runner.piece.feeds}
            received = runner.forward(Rows(round, j, 0, ROWS), feeds, received, 1.0 / MICRO_BATCHES)

    def backward(self, round: int, j: int) -> None:
        gradients: dict[int, torch.Tensor | None] = {}
        for runner in reversed(self.runners):
            gradients = runner.backward(round, j, gradients)
            if runner.late_weights:
                runner.weights(round, j)

    def commit(self, round: int) -> None:
        for runner in self.runners:
            runner.commit(round, 1.0, 1.0)

    def tensors(self) -> dict[str, torch.Tensor]:
        states = [runner.state() for runner in self.runners]
        return {name: t for s in states for part in (s.parameters, s.buffers) for name, t in part.items()}


def eager(model: nn.Module, late: int) -> dict[str, torch.Tensor]:
    """Autograd by itself: each round's gradient is of the weights `late` steps before the newest."""
    at = [copy.deepcopy(model.state_dict())]  # what the next rounds compute with
    rule = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for round in range(ROUNDS):
        newest = {n: t.detach().clone() for n, t in model.named_parameters()}
        old = at[max(0, round - late)]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(old[name])
        rule.zero_grad()
        for j in range(MICRO_BATCHES):
            x, y = batch(round, j)
            (nn.functional.cross_entropy(model(x), y) / MICRO_BATCHES).backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(newest[name])
        rule.step()
        at.append({n: t.detach().clone() for n, t in model.named_parameters()})
    return dict(model.state_dict())


def assert_trained_like(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    assert set(found) <= set(expected)
    for name, tensor in found.items():
        assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-6), name


HOW = (How(), How(recompute=True), How(late_weights=True))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Small()


@pytest.mark.parametrize("how", HOW)
def test_in_lock_step_every_gradient_is_of_the_newest_weights(model: nn.Module, how: How) -> None:
    stages = Stages(copy.deepcopy(model), 0, how)
    for round in range(ROUNDS):
        for j in range(MICRO_BATCHES):
            stages.forward(round, j)
            stages.backward(round, j)
        stages.commit(round)
    assert_trained_like(eager(model, late=0), stages.tensors())


@pytest.mark.parametrize("how", HOW)
def test_a_backward_uses_the_version_of_its_forward_when_rounds_overlap(model: nn.Module, how: How) -> None:
    stages = Stages(copy.deepcopy(model), 1, how)
    stages.forward(0, 0)
    stages.forward(0, 1)
    for round in range(ROUNDS):
        stages.backward(round, 0)
        more = range(MICRO_BATCHES if round + 1 < ROUNDS else 0)
        for j in more[:1]:
            stages.forward(round + 1, j)  # between the backwards of the round before
        stages.backward(round, 1)
        for j in more[1:]:
            stages.forward(round + 1, j)
        stages.commit(round)  # and the step lies between forward and backward of the next round
    assert_trained_like(eager(model, late=1), stages.tensors())


def test_one_step_late_is_not_lock_step(model: nn.Module) -> None:
    late, now = eager(copy.deepcopy(model), late=1), eager(model, late=0)
    assert not torch.allclose(late["out.weight"], now["out.weight"])


def test_what_one_round_forgets_another_keeps(model: nn.Module) -> None:
    stages = Stages(model, 1, How())
    for round in (0, 1):
        stages.forward(round, 0)
        stages.backward(round, 0)
    stages.forward(1, 1)
    runner = stages.runners[0]
    kept = {n: g.clone() for n, g in runner.gradients(1).items() if g is not None}
    runner.abort(0)
    assert all(gradient is None for gradient in runner.gradients(0).values())
    assert kept
    assert all(torch.equal(kept[name], g) for name, g in runner.gradients(1).items() if g is not None)
    runner.backward(1, 1, {v: torch.zeros_like(t) for v, t in runner._stashes[1, 1].sent.items()})
    runner.abort()
    assert all(gradient is None for gradient in runner.gradients(1).values())


def test_lock_step_has_one_version_and_copies_nothing(model: nn.Module) -> None:
    runner = Stages(model, 0, How()).runners[0]
    before = {name: tensor.data_ptr() for name, tensor in runner.parameters.items()}
    for ask in (runner.versions.for_forward, runner.versions.for_backward):
        assert ask(3, 1) is runner.parameters
    runner.commit(0, 1.0, 1.0)
    assert runner.versions.for_step(1) is runner.parameters
    assert {name: tensor.data_ptr() for name, tensor in runner.parameters.items()} == before
    assert runner.versions.kept() == {}


def test_the_gradient_of_what_was_received_comes_in_the_order_in_memory_that_it_has() -> None:
    arriving: dict[int, torch.Tensor | None] = {7: None}
    x = torch.zeros(2, 3, 4, 4, requires_grad=True)
    gradient = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    Tap.apply(x, arriving, 7).backward(gradient)
    assert x.grad is None
    assert arriving[7] is not None
    assert arriving[7].stride() == gradient.stride()


def test_what_is_one_step_late_goes_on_elsewhere_where_it_stopped(model: nn.Module) -> None:
    """A device that takes over needs the weights from before the last step, too: they travel with its state."""
    whole, first = Stages(copy.deepcopy(model), 1, How()), Stages(copy.deepcopy(model), 1, How())
    for stages, rounds in ((whole, range(ROUNDS)), (first, range(3))):
        for round in rounds:
            train(stages, round)
    second = Stages(copy.deepcopy(model), 1, How(), [runner.state() for runner in first.runners], 3)
    for round in range(3, ROUNDS):
        train(second, round)
    found = second.tensors()
    assert {n for n, t in whole.tensors().items() if not torch.equal(t, found[n])} == set()


def train(stages: Stages, round: int) -> None:
    for j in range(MICRO_BATCHES):
        stages.forward(round, j)
        stages.backward(round, j)
    stages.commit(round)


def test_only_two_rounds_may_be_open() -> None:
    weights = {"w": torch.zeros(2, requires_grad=True)}
    versions = OneStepLate(weights, {}, 4)
    for round in (3, 6):
        with pytest.raises(ValueError, match=f"round {round}"):
            versions.for_forward(round, 0)
    with pytest.raises(ValueError, match="before that of round 4"):
        versions.begin_step(5)


def test_weights_of_before_are_parted_from_what_the_optimizer_keeps() -> None:
    kept = {"a.weight/momentum_buffer": torch.zeros(1), "a.weight/previous": torch.ones(1)}
    optimized, previous = parted(kept)
    assert set(optimized) == {"a.weight/momentum_buffer"}
    assert set(previous) == {"a.weight"}

"""Every module is trained in the mode its user left it in, as a plain loop would; evaluation is evaluation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import potluck
from potluck.commands.verifying import in_float64
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.errors import ModelError
from potluck.model.build import BuiltModel
from potluck.program.blocks import facts
from tests.unit.model.pipeline import Pipeline, even_cuts
from tests.unit.model.small_models import (
    WIDTH,
    Layers,
    assert_cut_equals_uncut,
    stepped,
    train_eagerly,
    vector_batches,
    vectors,
)

ROUNDS = [vector_batches((4, 3), seed=100 * r) for r in range(3)]


def prepared(model: Any) -> BuiltModel:
    """What a job makes of the model, with everything that is tried on it before."""
    feeds = vectors(8)
    data = (feeds["input"], feeds["label"])
    job = potluck.Job(
        model=model, loss=F.mse_loss, optimizer=potluck.SGD(lr=0.1), data=data, eval_data=data, batch_size=4, rounds=1
    )
    return prepare_job(job).built


def assert_trains_as(expected: nn.Module, built: BuiltModel, stages: int = 2) -> None:
    """Three rounds cut, uncut and in plain PyTorch, whose modes are as given: the same bits; then an evaluation."""
    cut = assert_cut_equals_uncut(built, ROUNDS, stages)
    train_eagerly(expected, ROUNDS, F.mse_loss)
    found = cut.tensors()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.get(name, built.state[name]), tensor), name
    expected.eval()
    feeds = vectors(5, 9)
    assert torch.equal(cut.evaluate(feeds)[0], expected(feeds["input"]).detach())


def normed(self: Any, i: int, x: torch.Tensor) -> torch.Tensor:
    return x if i == 2 else self.norms[i](x)


def two_norms() -> Any:
    """BatchNorm after two layers, with statistics of their own, so that a frozen one gives something else."""
    norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(2))
    for name, statistics in norms.named_buffers():
        if name.endswith(("mean", "var")):
            statistics.uniform_(0.5, 2)
    return stepped(normed, norms=norms)


def test_a_frozen_batch_norm_stays_frozen_and_one_beside_it_active():
    model = two_norms()
    model.norms[0].eval()
    plain = copy.deepcopy(model)
    built = prepared(model)
    assert {u.buffer for u in built.programs.train.updates} == {
        f"norms.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert [m.training for m in model.modules()] == [m.training for m in plain.modules()]
    assert_trains_as(plain, built)


def test_a_model_whose_every_batch_norm_is_frozen_may_be_split_by_samples():
    model = two_norms()
    model.norms.eval()
    built = prepared(copy.deepcopy(model))
    assert not any(b.coupled for b in facts(built.programs, 1).blocks)
    assert_trains_as(model, built)


def dropped(self: Any, i: int, x: torch.Tensor) -> torch.Tensor:
    return x if i == 2 else x + self.drops[i](x)


def two_drops() -> Any:
    """An active dropout drops everything, so that plain PyTorch draws the same."""
    return stepped(dropped, drops=nn.ModuleList(nn.Dropout(1.0) for _ in range(2)))


def test_a_dropout_that_is_switched_off_drops_nothing_and_one_beside_it_drops():
    model = two_drops()
    model.drops[0].eval()
    built = prepared(copy.deepcopy(model))
    assert sum(n.op.startswith("potluck.") for n in built.programs.train.nodes) == 1
    assert_trains_as(model, built)


def test_a_model_that_comes_in_evaluation_mode_is_trained_with_dropout_on():
    built = prepared(lambda: two_drops().eval())
    assert sum(n.op.startswith("potluck.") for n in built.programs.train.nodes) == 2
    assert not any(n.op.startswith("potluck.") for n in built.programs.eval.nodes)
    assert_trains_as(two_drops(), built)


class KeepsFrozen(Layers):
    """Its BatchNorm is never in training mode; it returns nothing, and knows what it was told last."""

    def __init__(self, step: Any) -> None:
        super().__init__(step, norms=two_norms().norms)
        self.told: list[bool] = []

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)
        self.get_submodule("norms").eval()
        self.told.append(mode)


def keeps_frozen() -> Any:
    torch.manual_seed(0)
    return KeepsFrozen(normed)


def switched(model: Any, mode: bool) -> Any:
    model.train(mode)
    return model


@pytest.mark.parametrize("come", [lambda m: m, lambda m: switched(m, True), lambda m: switched(m, False)])
def test_what_a_train_of_its_own_keeps_frozen_stays_frozen(come):
    built = prepared(lambda: come(keeps_frozen()))
    assert built.programs.train.updates == ()
    assert_trains_as(switched(keeps_frozen(), True), built)


def test_what_came_switched_off_stays_off_where_a_train_of_its_own_would_switch_it_on():
    model = keeps_frozen()
    model.step, model.drops = lambda self, i, x: dropped(self, i, normed(self, i, x)), two_drops().drops
    model.drops[1].eval()
    built = prepared(copy.deepcopy(model))
    assert built.programs.train.updates == ()
    assert sum(n.op.startswith("potluck.") for n in built.programs.train.nodes) == 1
    model.train()
    model.drops[1].eval()
    assert_trains_as(model, built)


@pytest.mark.parametrize("mode", [True, False])
def test_a_train_of_its_own_is_told_when_evaluation_is_over(mode):
    model = switched(keeps_frozen(), mode)
    prepared(model)
    assert model.told[-1] == mode
    assert set(model.told) == {True, False}


def test_a_part_in_training_mode_within_a_model_in_evaluation_mode_is_refused_as_it_may_mean_either():
    model = two_drops().eval()
    model.drops[1].train()
    modes = [m.training for m in model.modules()]
    with pytest.raises(ModelError, match=r"evaluation mode, but 'drops.1' in it .* call model.train\(\)") as refused:
        prepared(model)
    assert "\n" not in str(refused.value)
    assert modes == [m.training for m in model.modules()]
    model.training = True  # the way out that keeps the parts
    assert_trains_as(model, prepared(copy.deepcopy(model)))


def pieces(mode: Callable[[int], bool]) -> list[nn.Module]:
    """Three modules with BatchNorm, each in the mode that is told for its position."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).train(mode(i)) for i in range(3)]


def some(i: int) -> bool:
    return i == 1


def all_of_them(i: int) -> bool:
    return True


def none(i: int) -> bool:
    return False


@pytest.mark.parametrize("cut", [list, lambda made: nn.Sequential(*made)], ids=["list", "Sequential"])
def test_modules_cut_by_hand_keep_the_mode_of_each(cut):
    built = prepared(lambda: cut(pieces(some)))
    assert {u.buffer.split(".")[0] for u in built.programs.train.updates} == {"1"}
    assert_trains_as(nn.Sequential(*pieces(some)), built, stages=3)


def test_a_list_of_modules_that_all_come_in_evaluation_mode_is_trained():
    assert_trains_as(nn.Sequential(*pieces(all_of_them)), prepared(pieces(none)), stages=3)


def test_in_float64_too_modes_are_kept():
    model = two_norms()
    model.norms[0].eval()
    plain = copy.deepcopy(model).double()
    feeds = vectors(8)
    job = potluck.Job(
        model=model, loss=F.mse_loss, optimizer=potluck.SGD(lr=0.1), data=(feeds["input"], feeds["label"]),
        batch_size=4, rounds=1,
    )  # fmt: skip
    built = prepare_job(in_float64(job)).built
    rounds = [vector_batches((4, 3), seed=r, dtype=torch.float64) for r in range(2)]
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2))
    for number, batches in enumerate(rounds):
        cut.round(number, batches)
    expected = train_eagerly(plain, rounds, F.mse_loss).state_dict()
    found = cut.tensors()
    assert all(torch.allclose(found.get(n, built.state[n]), t, rtol=0, atol=1e-8) for n, t in expected.items())

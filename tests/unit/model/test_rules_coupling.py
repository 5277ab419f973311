"""Where one sample's result depends on others is found, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.model.build import build
from potluck.model.probe import _alike
from potluck.program.blocks import facts
from tests.unit.model.small_models import build_small, stepped, vectors


def coupled_blocks(built):
    return [b.index for b in facts(built.programs, 1).blocks if b.coupled]


def contrastive(outputs, labels):
    left, right = F.normalize(outputs, dim=1), F.normalize(labels, dim=1)
    return F.cross_entropy(left @ right.T, torch.arange(outputs.shape[0], device=outputs.device))


def mean_over_the_batch(self, i, x):
    return x - x.mean(0) if i == 1 else x


def softmax_over_the_batch(self, i, x):
    return x.softmax(0) if i == 1 else x


def attention_over_the_batch(self, i, x):
    return (x @ x.T).softmax(1) @ x if i == 1 else x


def flipped_batch(self, i, x):
    return x.flip(0) if i == 1 else x


def sorted_batch(self, i, x):
    return x.sort(0).values if i == 1 else x


def hidden_behind_a_zero(self, i, x):
    return x + self.gate(x).mean(0) if i == 1 else x


def zero_gate():
    gate = nn.Linear(6, 6)
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)
    return gate


MIXING = [mean_over_the_batch, softmax_over_the_batch, attention_over_the_batch, flipped_batch, sorted_batch]


@pytest.mark.parametrize("step", MIXING, ids=lambda f: f.__name__)
def test_samples_that_meet_inside_the_model_are_noticed(step):
    built = build_small(stepped(step))
    assert coupled_blocks(built), built.programs.train.nodes
    assert 0 not in coupled_blocks(built)  # the first layer is innocent


def test_a_zero_does_not_hide_it():
    built = build_small(stepped(hidden_behind_a_zero, gate=zero_gate()))
    assert coupled_blocks(built)


def test_an_input_normalised_over_the_batch_couples_whoever_computes_it():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.two(self.one(x - x.mean(0)))

    built = build_small(Centred())
    assert coupled_blocks(built) == [0]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_couples_only_in_training(training):
    model: Any = stepped(lambda self, i, x: self.norm(x) if i == 1 else x, norm=nn.BatchNorm1d(6)).train()
    if not training:
        model.norm.eval()  # frozen, as in fine-tuning
    built = build_small(model)
    assert bool(coupled_blocks(built)) == training
    assert bool(built.programs.train.updates) == training
    assert model.norm.training == training
    assert not built.programs.eval.coupled


def test_batch_norm_without_running_statistics_couples_in_evaluation_too():
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    built = build_small(stepped(lambda self, i, x: self.norm(x) if i == 1 else x, norm=norm))
    assert built.programs.train.coupled
    assert built.programs.eval.coupled


def test_a_probe_of_two_samples_can_judge_batch_norm():
    model = stepped(lambda self, i, x: self.norm(x) if i == 1 else x, norm=nn.BatchNorm1d(6))
    built = build(model, F.mse_loss, vectors(2), torch.ones(2, dtype=torch.float64))
    assert coupled_blocks(built)


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.RMSNorm(6), nn.Identity(), nn.Softmax(1), nn.Dropout(0.5)],
    ids=lambda n: type(n).__name__,
)
def test_other_layers_couple_nothing(norm):
    built = build_small(stepped(lambda self, i, x: self.norm(x), norm=norm))
    assert coupled_blocks(built) == []
    assert built.programs.train.separable_loss


def test_row_numbers_couple_nothing():
    def last_of_each(self, i, x):
        rows = torch.arange(x.shape[0], device=x.device)
        return x * (1 + x[rows, x.abs().argmax(1)].unsqueeze(1))

    built = build_small(stepped(last_of_each))
    assert coupled_blocks(built) == []


def test_a_contrastive_loss_is_not_separable_and_couples_the_last_block():
    built = build_small(stepped(), contrastive)
    assert not built.programs.train.separable_loss
    assert coupled_blocks(built) == [built.programs.train.block_count - 1]


@pytest.mark.parametrize(
    ("loss", "separable"),
    [
        (F.mse_loss, True),
        (lambda o, y: F.huber_loss(o, y), True),
        (lambda o, y: F.mse_loss(o, y, reduction="sum"), False),
        (lambda o, y: (o - y).square().mean().sqrt(), False),
        (lambda o, y: (o - y).abs().amax(), False),
    ],
    ids=["mse", "huber", "sum", "root", "worst"],
)
def test_a_loss_is_separable_if_it_is_the_mean_of_its_parts(loss, separable):
    built = build_small(stepped(), loss)
    assert built.programs.train.separable_loss == separable
    assert bool(coupled_blocks(built)) != separable


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_difference_and_a_difference_is_no_rounding(dtype):
    torch.manual_seed(0)
    value = torch.randn(50, dtype=torch.float64)
    rounded = value * (1 + 2 * torch.finfo(dtype).eps * torch.randn(50, dtype=torch.float64))
    assert _alike(value.to(dtype), rounded.to(dtype))
    assert not _alike(value.to(dtype), (value + 0.2 * value.flip(0)).to(dtype))
    assert not _alike(value.to(dtype), value[:-1].to(dtype))


def test_the_node_in_which_samples_meet_is_named():
    program = build_small(stepped(mean_over_the_batch)).programs.train
    mean = next(i for i, n in enumerate(program.nodes) if n.op == "aten.mean.dim")
    assert mean in program.coupled


def test_half_precision_couples_nothing():
    built = build_small(stepped(lambda self, i, x: torch.tanh(x)).bfloat16())
    assert coupled_blocks(built) == []

"""Buffers that a forward changes are explicit results: adopted at commit in micro-batch order, dropped on abort."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.compute.runner import Rows
from potluck.errors import InputError, ModelError
from potluck.program.blocks import facts
from tests.models.zoo import residual_cnn
from tests.unit.model.pipeline import Pipeline, differing, even_cuts, uncut
from tests.unit.model.small_models import (
    assert_equals_eager,
    build_small,
    micro_batches,
    stepped,
    vector_batches,
)


def batch_norm(**options):
    torch.manual_seed(0)
    return stepped(lambda self, i, x: self.norm(x) if i == 1 else x, norm=nn.BatchNorm1d(6, **options))


def assert_one_block_uses(built, buffer):
    cut = pipeline(built, built.programs.train.block_count)
    for mode in ("train", "eval"):
        assert sum(buffer in piece.buffers for piece in cut.layout.pieces[mode]) == 1


def pipeline(built, stages=2, **options):
    return Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, stages), **options)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.37}, {"affine": False}, {"track_running_stats": False}], ids=str
)
@pytest.mark.parametrize("stages", [1, 2])
def test_running_statistics_have_the_bits_of_the_module(options, stages):
    built = build_small(batch_norm(**options))
    cut = assert_equals_eager(built, batch_norm(**options), stages=stages, sizes=(4, 3, 5))
    if options.get("track_running_stats", True):
        assert int(cut.tensors()["norm.num_batches_tracked"]) == 9


def test_statistics_are_updates_that_can_be_folded():
    built = build_small(batch_norm())
    kinds = {u.buffer: u.kind for u in built.programs.train.updates}
    assert kinds == {
        "norm.running_mean": "mean",
        "norm.running_var": "variance",
        "norm.num_batches_tracked": "count",
    }
    assert built.programs.eval.updates == ()
    assert not any(b.exclusive for b in facts(built.programs, 1).blocks)


def test_they_are_folded_in_micro_batch_order_whatever_order_they_were_made_in():
    built = build_small(batch_norm())
    batches = vector_batches((4, 3, 5))
    straight = uncut(built.programs, built.state)
    straight.round(0, batches)
    other = uncut(built.programs, built.state).stage
    inputs = {s.id: s.name for s in built.programs.train.sources if s.kind == "input"}
    for j in (2, 0, 1):
        feeds, weights = batches[j]
        other.forward(Rows(0, j, 0, len(weights)), {i: feeds[n] for i, n in inputs.items()}, {}, len(weights) / 12)
        other.backward(0, j, {})
    other.commit(0, 1.0, 1.0)
    for name, tensor in straight.stage.buffers.items():
        assert torch.equal(other.buffers[name], tensor), name


def test_nothing_is_written_before_the_commit_and_nothing_after_an_abort():
    built = build_small(batch_norm())
    cut = pipeline(built)
    cut.round(0, vector_batches((4, 3)), commit=False)
    assert differing(cut.tensors(), built.state) == []
    cut.round(0, vector_batches((4, 3)))
    other = pipeline(built)
    other.round(0, vector_batches((4, 3)))
    assert differing(cut.tensors(), other.tensors()) == []


def test_a_forward_that_is_done_again_counts_once():
    built = build_small(batch_norm())
    inputs = {s.id: s.name for s in built.programs.train.sources if s.kind == "input"}
    found = []
    for times in (1, 3):
        stage = uncut(built.programs, built.state).stage
        for j, (feeds, _) in enumerate(vector_batches((4, 4))):
            for _again in range(times):
                stage.forward(Rows(0, j, 0, 4), {i: feeds[n] for i, n in inputs.items()}, {}, 0.5)
            stage.backward(0, j, {})
        stage.commit(0, 1.0, 1.0)
        found.append(stage.state())
    assert differing(found[0].buffers, found[1].buffers) == []
    assert differing(found[0].parameters, found[1].parameters) == []


def test_evaluation_uses_the_committed_statistics():
    model = batch_norm()
    built = build_small(batch_norm())
    cut = assert_equals_eager(built, model, stages=2)
    feeds, _ = vector_batches((3,), seed=50)[0]
    assert torch.equal(cut.evaluate(feeds)[0], model.eval()(feeds["input"]).detach())


def test_one_value_per_channel_is_refused_as_torch_refuses_it():
    built = build_small(batch_norm())
    with pytest.raises(InputError, match="more than one value per channel"):
        pipeline(built).round(0, vector_batches((4, 1)))


def test_a_batch_norm_used_twice_counts_twice_and_stays_in_one_block():
    def make():
        torch.manual_seed(0)
        return stepped(lambda self, i, x: self.norm(x) if i < 2 else x, norm=nn.BatchNorm1d(6))

    built = build_small(make())
    assert_one_block_uses(built, "norm.running_mean")
    cut = assert_equals_eager(built, make(), stages=3)
    assert int(cut.tensors()["norm.num_batches_tracked"]) == 12  # 3 rounds of 2 micro-batches


def test_a_module_under_two_names_has_one_set_of_buffers():
    def make():
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(6)
        model = stepped(lambda self, i, x: (self.left if i == 0 else self.right)(x) if i < 2 else x, left=norm)
        model.right = norm
        return model

    built = build_small(make())
    assert built.programs.aliases["right.running_mean"] == "left.running_mean"
    assert {u.buffer.split(".")[0] for u in built.programs.train.updates} == {"left"}
    assert_equals_eager(built, make(), stages=2)


def test_statistics_of_the_raw_input_are_kept_once():
    """BatchNorm without weights in front: it depends on no parameter, but two copies of its buffers would drift."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6, affine=False)
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            y = x = self.norm(x)
            for layer in self.layers:
                y = layer(y) + x
            return y

    def make():
        torch.manual_seed(0)
        return First()

    built = build_small(make())
    assert_one_block_uses(built, "norm.running_mean")
    cut = assert_equals_eager(built, make(), stages=2)
    model = make()
    model.load_state_dict({n: cut.tensors()[n] for n in model.state_dict()})
    feeds, _ = vector_batches((3,), seed=50)[0]
    assert torch.equal(cut.evaluate(feeds)[0], model.eval()(feeds["input"]).detach())


def test_statistics_of_a_deep_network_after_an_aborted_round(zoo):
    built = zoo("residual_cnn")
    rounds = [micro_batches(residual_cnn(), (4, 3), seed=s) for s in (1, 2)]
    cut, straight = pipeline(built, 3), uncut(built.programs, built.state)
    cut.round(0, rounds[0])
    cut.round(1, rounds[1], commit=False)
    cut.round(1, rounds[1])
    for number, batches in enumerate(rounds):
        straight.round(number, batches)
    assert (
        differing(
            cut.tensors(),
            {**straight.stage.buffers, **straight.stage.state().parameters, **straight.stage.optimizer.state()},
        )
        == []
    )


def test_a_loss_may_keep_a_constant_but_no_parameter():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0, 3.0]))

    def loss(outputs, labels):
        return weighted(outputs, labels.abs().long().clamp(max=5)[:, 0])

    class WithParameter(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, labels):
            return self.scale * F.mse_loss(outputs, labels)

    built = build_small(stepped(), loss)
    assert [s.kind for s in built.programs.train.sources if s.data is not None] == ["constant"]
    assert pipeline(built).round(0, vector_batches((4, 3))) is None
    with pytest.raises(ModelError, match=r"the loss has a parameter \(loss.scale\)"):
        build_small(stepped(), WithParameter())

"""Each part's loss counts by its loss weight, so that micro-batches of any kind add up to the loss over all tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from potluck.errors import ModelError
from potluck.model.probe import probe
from tests.models.case import IGNORED
from tests.models.zoo import padded_encoder
from tests.unit.model.pipeline import Pipeline, even_cuts, uncut
from tests.unit.model.small_models import build_case, build_small, feeds_of, stepped, weights_of

CASE = padded_encoder()


@pytest.fixture(scope="module")
def built():
    return build_case(CASE, CASE.make_model().double(), torch.float64)


def summed(built, batches):
    """Losses and gradients of a round that is not committed."""
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 3))
    found = {}
    for group in cut.groups:  # look at the gradients in the moment of the abort
        runner: Any = group[0]

        def abort(round, runner=runner, forget=runner.abort):
            found.update({n: g.clone() for n, g in runner.gradients(round).items() if g is not None})
            forget(round)

        runner.abort = abort
    cut.round(0, batches, commit=False)
    return cut.losses, found


def all_at_once(built, feeds):
    model = CASE.make_model().double()
    loss = CASE.loss(model(feeds["input0"], feeds["input1"]), feeds["label"])
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def parts(feeds, sizes):
    made, start = [], 0
    for size in sizes:
        part = {n: t[start : start + size] for n, t in feeds.items()}
        made.append((part, weights_of(CASE, part["label"])))
        start += size
    return made


def assert_adds_up(built, feeds, batches):
    total = sum(float(w.sum()) for _, w in batches)
    losses, found = summed(built, batches)
    loss, expected = all_at_once(built, feeds)
    shares = [float(w.sum()) / total for _, w in batches]
    assert sum(s * value for s, value in zip(shares, losses, strict=True) if s) == pytest.approx(loss, rel=1e-12)
    assert set(found) == set(expected)
    scale = max(float(g.norm()) for g in expected.values())
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) <= 1e-10 * scale, name


def test_unequal_padding_adds_up_to_the_loss_over_all_tokens(built):
    feeds = feeds_of(CASE, 10, 3, torch.float64)
    batches = parts(feeds, (4, 3, 3))
    counts = {float(w.sum()) for _, w in batches}
    assert len(counts) > 1, "the micro-batches have equally many tokens"
    assert_adds_up(built, feeds, batches)


def test_a_micro_batch_in_which_nothing_counts_adds_nothing(built):
    feeds = feeds_of(CASE, 8, 4, torch.float64)
    feeds["label"][4:] = IGNORED
    batches = parts(feeds, (4, 4))
    assert float(batches[1][1].sum()) == 0
    assert_adds_up(built, feeds, batches)
    losses, found = summed(built, batches)
    assert losses[1] == 0.0
    assert all(torch.isfinite(g).all() for g in found.values())


def test_a_row_in_which_nothing_counts_adds_nothing_when_rows_are_shared(built):
    feeds = feeds_of(CASE, 4, 5, torch.float64)
    feeds["label"][2:] = IGNORED
    cuts = even_cuts(built.programs.train.block_count, 2)
    shared = Pipeline(built.programs, built.state, cuts, shares={0: 2, 1: 2})
    shared.round(0, parts(feeds, (4,)))
    whole = uncut(built.programs, built.state)
    whole.round(0, parts(feeds, (4,)))
    assert shared.losses[1] == 0.0
    for name, tensor in shared.tensors().items():
        if name in built.state:
            assert torch.allclose(tensor, whole.stage.parameters[name], rtol=1e-9, atol=1e-12), name


def test_equal_weights_do_not_fit_a_loss_per_token(zoo):
    built, feeds = zoo("padded_encoder"), feeds_of(CASE, 4, 1)
    weights = weights_of(CASE, feeds["label"])
    assert len(set(weights.tolist())) > 1
    assert probe(built.programs.train, built.state, feeds, weights).separable_loss
    assert not probe(built.programs.train, built.state, feeds, torch.ones(4)).separable_loss


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: (o - y).square(),
        lambda o, y: (o - y).square().mean(1),
        lambda o, y: (o > y).sum(),
        lambda o, y: 1.0,
    ],
    ids=["per entry", "per sample", "integer", "number"],
)
def test_a_loss_that_is_not_one_number_is_refused(loss):
    with pytest.raises(ModelError, match="it must give one number") as refused:
        build_small(stepped(), loss)
    assert "\n" not in str(refused.value)


def test_a_loss_without_any_trainable_parameter_is_refused():
    with pytest.raises(ModelError, match="nothing to train"):
        build_small(stepped().requires_grad_(False))
    with pytest.raises(ModelError, match="nothing to train"):
        build_small(stepped(), lambda o, y: (o.detach() - y).square().mean())

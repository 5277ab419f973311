"""No in-place operator survives into a program: it is rewritten with the same numbers, or refused naming the line."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.errors import ModelError
from tests.models.zoo import residual_cnn
from tests.unit.model.pipeline import Pipeline, even_cuts
from tests.unit.model.small_models import (
    assert_equals_eager,
    build_case,
    build_small,
    feeds_of,
    stepped,
    vectors,
)


def line_of(function, words):
    """ "file:line" of the line of a function that has these words."""
    lines, first = inspect.getsourcelines(function)
    return f"test_rules_in_place.py:{first + next(i for i, line in enumerate(lines) if words in line)}"


def relu_(self, i, x):
    return F.relu(x, inplace=True)


def add_(self, i, x):
    y = x * 2
    y += x
    return y.mul_(0.5).sub_(0.1, alpha=2)


def chain(self, i, x):
    y = x.clone()
    z = y.add_(1)
    y.mul_(2)
    return (y + z) * 0.1  # both names are one tensor


def masked_fill_(self, i, x):
    return (x + 0).masked_fill_(x > 0.5, -1.0).clamp_(min=-0.7)


def index_put_(self, i, x):
    y = x.clone()
    y[:, torch.tensor([0, 2])] = x[:, torch.tensor([1, 3])]
    return y


def slice_assignment(self, i, x):
    y = x.clone()
    y[:, 0] = 0.5
    y[:, 2:4] = x[:, :2]
    y[:, 1:][:, 3] *= 2
    y[:, ::2] += y[:, 1::2]
    return y * 0.5


def mask_assignment(self, i, x):
    keep = torch.ones(x.shape[0], 6, dtype=torch.bool)
    keep[:, 1] = False
    keep[x > 0.7] = False
    return x * keep


def broadcast(self, i, x):
    y = x.clone()
    z, _ = torch.broadcast_tensors(y, x)
    y += 1
    return (y + z) * 0.2


def dead_view(self, i, x):
    y = (x * 0.7).view(-1, 2, 3)
    y += 1  # x * 0.7 itself is not used any more
    return y.flatten(1)


def in_a_no_grad_region(self, i, x):
    y = x.detach().clone()
    with torch.no_grad():
        y.mul_(0.5)
        y += 1
    return x + y


def unsqueeze_(self, i, x):
    return (x * 1).unsqueeze_(1).transpose_(1, 2).squeeze_(2)


def keeps_its_type(self, i, x):
    y = x.to(torch.bfloat16)
    y += x * 0.3  # stays bfloat16
    return x + y.float()


def comparison(self, i, x):
    return x * x.detach().clone().gt_(0)


def copy_(self, i, x):
    return torch.empty_like(x).copy_(x[:1]) * 0 + x


def fill_(self, i, x):
    return x + torch.zeros_like(x).fill_(0.25).zero_().add_(0.5)


REWRITTEN = [relu_, add_, chain, masked_fill_, index_put_, dead_view, in_a_no_grad_region, unsqueeze_]
REWRITTEN += [keeps_its_type, comparison, copy_, fill_, slice_assignment, mask_assignment, broadcast]


@pytest.mark.parametrize("step", REWRITTEN, ids=lambda f: f.__name__)
def test_rewritten_with_the_bits_of_the_module(step):
    built = build_small(stepped(step))
    for program in (built.programs.train, built.programs.eval):
        assert not [n.op for n in program.nodes if n.op.split(".")[1].endswith("_")]
    assert_equals_eager(built, stepped(step), stages=3)


@pytest.mark.parametrize("name", ["residual_cnn", "unet"])
def test_no_in_place_operator_is_left_in_a_network_full_of_them(name, zoo):
    for program in (zoo(name).programs.train, zoo(name).programs.eval):
        assert all(not n.op.split(".")[1].endswith("_") for n in program.nodes)


def view_used_later(self, i, x):
    y = x.clone()
    first = y[:, :2]
    y += 1
    return torch.cat([first, y[:, 2:]], 1)


def slice_assignment_with_a_view(self, i, x):
    y = x.clone()
    flat = y.view(-1)
    y[:, 0] = 0.0
    return y + flat.view(-1, 6)


def other_slice_used_later(self, i, x):
    y = x.clone()
    left, right = y[:, :4], y[:, 2:]
    left += 1
    return torch.cat([left[:, :2], right], 1)


def reshaped_view(self, i, x):
    y = x.clone()
    y.view(-1, 2, 3)[:, 0] = 0.0
    return y


def view_made_without_gradient(self, i, x):
    y = x.detach().clone()
    with torch.no_grad():
        z = y.view(-1)
        z += 1
    return x + y


def dropout_on_a_view(self, i, x):
    y = x.clone()
    F.dropout(y.view(-1, 2, 3), 0.5, True, inplace=True)
    return y


REFUSED = [view_used_later, slice_assignment_with_a_view, other_slice_used_later, reshaped_view]
REFUSED += [view_made_without_gradient, dropout_on_a_view]


class InForward(nn.Module):
    """torch remembers lines of `forward`, so the step is written into one."""

    def __init__(self, step):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.step = step

    def forward(self, x):
        return self.second(self.step(self, 0, self.first(x)))


@pytest.mark.parametrize("step", REFUSED, ids=lambda f: f.__name__)
def test_refused_where_another_view_would_show_the_change(step):
    with pytest.raises(ModelError, match=r"test_rules_in_place.py:\d+: this changes a tensor in place"):
        build_small(InForward(step))


class LineInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        y = self.first(x)
        left = y.view(-1, 2, 3)
        left.mul_(2)  # this one
        return self.second(y)


def test_the_refusal_names_the_line():
    with pytest.raises(ModelError) as refused:
        build_small(LineInForward())
    assert str(refused.value).startswith(line_of(LineInForward.forward, "# this one"))
    assert "\n" not in str(refused.value)
    assert "x = x + y instead of x += y" in str(refused.value)


class Weight(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(6, 6), how

    def forward(self, x):
        with torch.no_grad():
            self.how(self.layer.weight)
        return self.layer(x)


@pytest.mark.parametrize(
    "how",
    [lambda w: w.clamp_(-1, 1), lambda w: w[0].zero_(), lambda w: w.detach().mul_(0.9)],
    ids=["all", "row", "detach"],
)
def test_a_parameter_changed_by_the_forward_pass_is_refused(how):
    with pytest.raises(ModelError, match=r"test_rules_in_place.py:\d+: the forward pass changes a parameter"):
        build_small(Weight(how))


def test_the_data_of_a_parameter_is_refused_too():
    with pytest.raises(ModelError, match=r"\.data"):
        build_small(Weight(lambda w: w.data.mul_(0.9)))


def test_an_embedding_that_renormalises_its_weight_is_refused():
    class Renorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.Embedding(6, 6, max_norm=1.0), nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(self.table(x.abs().long().clamp(max=5)[:, 0]))

    with pytest.raises(ModelError, match="changes a parameter"):
        build_small(Renorm())


def test_an_input_changed_in_place_does_not_change_the_callers_tensor():
    class Greedy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            x *= 2
            x = self.first(x)
            return self.second(x)

    torch.manual_seed(0)
    built = build_small(Greedy())
    feeds = vectors(4, 3)
    before = feeds["input"].clone()
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2))
    cut.round(0, [(feeds, torch.ones(4, dtype=torch.float64))])
    assert torch.equal(feeds["input"], before)
    torch.manual_seed(0)
    expected = Greedy()(before.clone()).detach()
    fresh = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2))
    assert torch.equal(fresh.evaluate(feeds)[0], expected)


def test_building_a_model_leaves_its_tensors_and_modes_alone(zoo):
    case = residual_cnn()
    model: Any = case.make_model()
    model.stem[1].eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    feeds = feeds_of(case, 4, 1)
    copies = {n: t.clone() for n, t in feeds.items()}
    build_case(case, model)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(copies[n], t) for n, t in feeds.items())

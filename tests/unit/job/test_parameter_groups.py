"""Patterns on names of parameters become the names of a model, and Muon's matrices are told from the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from potluck.errors import InputError
from potluck.job.optimizers import SGD, AdamW, Muon, ParamGroup
from potluck.job.parameter_groups import group_index, resolve


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.attend = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


def test_special_patterns_become_the_names_of_a_model():
    spec = AdamW(groups=(ParamGroup(match=(":norms", ":biases"), overrides={"weight_decay": 0}),))
    with pytest.raises(ValueError, match="not resolved"):
        group_index(spec, "norm.weight")
    names = resolve(spec, Model()).groups[0].match
    assert names == ("norm.weight", "norm.bias", "attend.in_proj_bias", "attend.out_proj.bias")


def test_muon_takes_matrices_between_embeddings_and_the_last_layer():
    spec = resolve(Muon(), Model())
    assert spec.match == ("attend.in_proj_weight", "attend.out_proj.weight")  # the head's weight is the embedding's


class Sorted(nn.Module):
    """A layer of each kind, a table of positions, and a part that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(5, 4), nn.Parameter(torch.zeros(3, 4))
        self.conv, self.norm, self.frozen = nn.Conv1d(4, 4, 3), nn.LayerNorm(4), nn.Linear(4, 4)
        self.one, self.two, self.out = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 5)
        self.frozen.requires_grad_(False)


def test_muon_leaves_the_rest_to_adamw_and_each_has_groups_of_its_own():
    few = ParamGroup(match=("one.*",), overrides={"lr": 0.1})
    no_decay = ParamGroup(match=(":norms", ":biases"), overrides={"weight_decay": 0.0})
    spec = resolve(Muon(groups=(few,), rest=AdamW(groups=(no_decay,))), Sorted())
    assert spec.match == ("one.weight", "two.weight")
    assert spec.groups[0].match == ("one.weight",)
    assert spec.rest.groups[0].match[:3] == ("norm.weight", "conv.bias", "norm.bias")
    own = resolve(Muon(rest=AdamW(groups=(ParamGroup(match=("one.*",), overrides={}),))), Sorted())
    assert own.rest.groups[0].match == ("one.bias",)
    chosen = resolve(Muon(match=("o*",), rest=AdamW(groups=(ParamGroup(match=("two.*",), overrides={}),))), Sorted())
    assert chosen.match == ("one.weight", "out.weight")
    assert chosen.rest.groups[0].match == ("two.weight", "two.bias")


@pytest.mark.parametrize(
    ("spec", "model", "words"),
    [
        (Muon(match=("conv.*",)), Sorted, r"'conv\.\*' fits no parameter with two axes .* like 'places'"),
        (Muon(), lambda: nn.Linear(3, 3), r"no matrix between .* give match=.* or take potluck\.NAdam"),
        (Muon(groups=(ParamGroup(match=("norm.*",), overrides={}),)), Sorted, r"'norm\.\*' fits .* like 'one.weight'"),
    ],
)
def test_what_muon_has_nothing_to_do_with_is_refused_in_one_line(spec, model, words):
    with pytest.raises(InputError, match=words) as raised:
        resolve(spec, model())
    assert "\n" not in str(raised.value)


def test_the_first_group_wins_and_a_tied_weight_goes_by_its_first_name():
    first = ParamGroup(match=("head.*",), overrides={"lr": 0.1})
    second = ParamGroup(match=("embed.*", "attend.*"), overrides={"lr": 0.2})
    spec = resolve(SGD(lr=1, groups=(first, second)), Model())
    assert spec.groups[0].match == ("embed.weight",)
    assert all(name.startswith("attend.") for name in spec.groups[1].match)


def test_a_pattern_that_fits_nothing_is_a_mistake_but_no_biases_is_not():
    with pytest.raises(InputError, match=r"'heads\.\*' fits no parameter"):
        resolve(SGD(lr=1, groups=(ParamGroup(match=("heads.*",), overrides={}),)), Model())
    bare = SGD(lr=1, groups=(ParamGroup(match=(":biases",), overrides={}),))
    assert resolve(bare, nn.Linear(2, 2, bias=False)).groups == ()

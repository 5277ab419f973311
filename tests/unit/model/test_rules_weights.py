"""Tied, frozen and unused parameters, and models whose weights are not here at all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.errors import ModelError
from potluck.model.build import build
from potluck.model.empty import empty_weights
from potluck.program.blocks import facts
from tests.models.case import token_loss
from tests.models.zoo import decoder, padded_encoder
from tests.unit.model.pipeline import Pipeline, differing, distance, even_cuts, uncut, uncut_tensors
from tests.unit.model.small_models import (
    WIDTH,
    assert_cut_equals_uncut,
    assert_equals_eager,
    build_case,
    build_small,
    micro_batches,
    stepped,
    vector_batches,
    weights_of,
)


class Tied(nn.Module):
    """The first weight is used again at the end, under another name."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.middle:
            x = torch.tanh(layer(x))
        return self.last(x)


def tied():
    torch.manual_seed(0)
    return Tied().double()


def test_a_tied_weight_has_one_source_one_owner_and_an_alias():
    built = build_small(tied())
    programs = built.programs
    assert programs.aliases == {"last.weight": "first.weight"}
    for program in (programs.train, programs.eval):
        names = [s.name for s in program.sources if s.kind == "parameter"]
        assert names.count("first.weight") == 1
        assert "last.weight" not in names
    assert "last.weight" not in built.state
    known = facts(programs, 1)
    assert [b.index for b in known.blocks if "first.weight" in b.parameters] == [0]
    assert known.tied == (("first.weight", (0, 3)),)
    assert sum(b.weight_bytes for b in known.blocks) == sum(p.nbytes for p in tied().parameters())


def test_a_tied_weight_gets_the_gradients_of_both_uses():
    built = build_small(tied())
    rounds = [vector_batches((4, 3), seed=100 * r, dtype=torch.float64) for r in range(3)]
    cut = Pipeline(built.programs, built.state, even_cuts(4, 4))
    whole = uncut(built.programs, built.state)
    for number, batches in enumerate(rounds):
        cut.round(number, batches)
        whole.round(number, batches)
    assert distance(cut.tensors(), uncut_tensors(whole), built.state) <= 1e-8
    first, last = (cut.groups[i][0].parameters["first.weight"] for i in (0, 3))
    assert torch.equal(first, last)
    model = tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for batches in rounds:
        for feeds, weights in batches:
            loss = F.mse_loss(model(feeds["input"]), feeds["label"])
            loss.backward(torch.full_like(loss, len(weights) / 7))
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(first, model.first.weight, rtol=1e-9)


def test_a_frozen_parameter_costs_no_gradient_and_no_optimizer_state():
    def make():
        model = stepped()
        model.layers[0].requires_grad_(False)
        model.layers[2].weight.requires_grad_(False)
        return model

    built = build_small(make())
    cut = assert_equals_eager(built, make(), stages=3)
    frozen = {"layers.0.weight", "layers.0.bias", "layers.2.weight"}
    tensors = cut.tensors()
    assert {n.rpartition("/")[0] for n in tensors if "/" in n} == set(built.state) - frozen
    for name in frozen:
        assert torch.equal(tensors[name], built.state[name])
        assert all(name not in group[0].gradients(0) for group in cut.groups)
    blocks = facts(built.programs, 1).blocks
    assert [b.trainable_bytes for b in blocks] == [0, 42 * 4, 6 * 4]
    assert [b.weight_bytes for b in blocks] == [42 * 4] * 3
    gradients = {c.producer: c.gradient for c in facts(built.programs, 1).crossings}
    assert gradients == {0: False, 1: True}  # nothing before the second layer needs one


def test_adapters_train_a_fraction_of_the_bytes(zoo):
    known = facts(zoo("adapters").programs, 1)
    trainable = sum(b.trainable_bytes for b in known.blocks)
    assert 0 < trainable < 0.1 * sum(b.weight_bytes for b in known.blocks)
    assert sum(not b.trainable_bytes for b in known.blocks) > 5


class Unused(nn.Module):
    """One parameter that nothing uses, and one whose result the loss does not look at."""

    def __init__(self):
        super().__init__()
        self.used, self.more = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.idle = nn.Linear(WIDTH, WIDTH)
        self.ignored = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.used(x)
        self.ignored(x)
        return self.more(x)


def test_parameters_the_loss_does_not_use_stay_as_they_are():
    torch.manual_seed(0)
    built = build_small(Unused())
    torch.manual_seed(0)
    assert_equals_eager(built, Unused(), stages=2)
    assert not any("idle.weight" in b.parameters for b in facts(built.programs, 1).blocks)


class Auxiliary(nn.Module):
    """A second head that only training has, and a third that only evaluation has."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6)))
        self.helper, self.report = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        early = self.helper(x) if self.training else None
        x = self.body(x)
        if self.training:
            return self.head(x), early
        return self.head(x), self.report(x)


def with_helper(outputs, labels):
    late, early = outputs
    return F.mse_loss(late, labels) + 0.3 * F.mse_loss(early, labels)


def test_heads_of_one_mode_only_leave_the_cuts_the_same():
    torch.manual_seed(0)
    model = Auxiliary()
    built = build_small(model, with_helper)
    programs = built.programs
    assert programs.train.block_count == programs.eval.block_count >= 3
    cut = assert_cut_equals_uncut(built, [vector_batches((4, 3))], stages=3)
    for train, evaluation in zip(cut.layout.pieces["train"], cut.layout.pieces["eval"], strict=True):
        only_one = {"helper.weight", "helper.bias", "report.weight", "report.bias"}
        assert set(train.parameters) - only_one == set(evaluation.parameters) - only_one
    fresh = Pipeline(programs, built.state, even_cuts(programs.train.block_count, 3))
    feeds, _ = vector_batches((3,))[0]
    expected = model.eval()(feeds["input"])
    for found, wanted in zip(fresh.evaluate(feeds), expected, strict=True):
        assert torch.equal(found, wanted.detach())
    owned = [n for b in facts(programs, 1).blocks for n in b.parameters]
    assert sorted(owned) == sorted(n for n, _ in model.named_parameters())


def test_a_tiny_model_is_one_block():
    torch.manual_seed(0)
    built = build_small(nn.Linear(WIDTH, WIDTH))
    known = facts(built.programs, 0)
    assert len(known.blocks) == 1
    assert known.crossings == ()
    torch.manual_seed(0)
    assert_equals_eager(built, nn.Linear(WIDTH, WIDTH))


def test_without_weights_the_programs_are_cut_at_the_same_places(zoo):
    with empty_weights():
        model = decoder().make_model()
    assert all(p.is_meta for p in model.parameters())
    programs, real = build_case(decoder(), model).programs, zoo("decoder").programs
    assert all(p.is_meta for p in model.parameters())  # they are left on meta
    assert programs.train.nodes == real.train.nodes
    assert programs.train.boundaries == real.train.boundaries
    assert programs.eval.boundaries == real.eval.boundaries
    assert programs.aliases == real.aliases
    known = facts(programs, 1)
    assert [b.weight_bytes for b in known.blocks] == [b.weight_bytes for b in facts(real, 1).blocks]
    assert all(b.coupled for b in known.blocks), "nothing was proven, so nothing may be shared by samples"


def test_weights_are_loaded_block_by_block(zoo):
    """Each stage is given only what it uses, as it would be read from a file."""
    case = padded_encoder()
    with empty_weights():
        programs = build_case(case, case.make_model()).programs
    real = zoo("padded_encoder")
    cut = Pipeline(programs, real.state, even_cuts(programs.train.block_count, 3))
    for i, group in enumerate(cut.groups):
        assert set(group[0].parameters) == set(cut.layout.state_names(i)[0])
        assert 0 < len(group[0].parameters) < len(real.state)
    whole = uncut(real.programs, real.state)
    for number in range(2):
        batches = micro_batches(case, (4, 3), seed=number)
        cut.round(number, batches)
        whole.round(number, batches)
    assert differing(cut.tensors(), uncut_tensors(whole)) == []


def test_a_buffer_whose_values_are_lost_is_refused_with_the_way_out():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("table", torch.linspace(0, 1, WIDTH), persistent=False)

        def forward(self, x):
            return self.layer(x) * self.table

    with torch.device("meta"):
        model = Rotary()
    with pytest.raises(ModelError, match=r"buffer 'table' .*empty_weights\(\)"):
        build_small_meta(model)
    with empty_weights():
        model = Rotary()
    assert build_small_meta(model).programs.train.block_count == 1


def build_small_meta(model):
    feeds, weights = vector_batches((4,))[0]
    return build(model, F.mse_loss, feeds, weights)


@pytest.mark.hf
@pytest.mark.full
def test_a_model_of_many_gigabytes_is_cut_without_its_weights():
    import resource

    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.models.zoo_hf import Logits

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with empty_weights():
        model = Logits(LlamaForCausalLM(config))
    tokens = torch.randint(32000, (4, 16))
    feeds = {"input": tokens, "label": tokens}
    programs = build(model, token_loss, feeds, weights_of(decoder(), tokens)).programs
    known = facts(programs, 2)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    weight_bytes = sum(b.weight_bytes for b in known.blocks)
    assert weight_bytes == sum(p.nbytes for p in model.parameters()) > 12e9
    assert grown < 1.5e9
    assert len(known.blocks) >= 32
    assert {n for b in known.blocks for n in b.parameters} == {n for n, _ in model.named_parameters()}
    assert all(not b.label.startswith(".") for b in known.blocks)
    assert max(b.weight_bytes for b in known.blocks) < 0.05 * weight_bytes
    single = [
        i for i in range(1, len(known.blocks)) if sum(c.producer < i <= max(c.consumers) for c in known.crossings) == 1
    ]
    assert len(single) >= 32

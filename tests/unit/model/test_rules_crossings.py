"""What crosses a cut: tensors with a batch axis, sliced along it; nothing that the next stage can compute itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.errors import ModelError
from potluck.model.build import build
from potluck.program.blocks import facts
from potluck.program.carve import Carver
from potluck.program.program import shape_of
from tests.models.zoo import all_cases
from tests.unit.model.pipeline import Pipeline, distance, even_cuts, uncut, uncut_tensors
from tests.unit.model.small_models import (
    WIDTH,
    assert_cut_equals_uncut,
    build_case,
    build_small,
    micro_batches,
    stepped,
    vector_batches,
    vectors,
)

CASES = {case.name: case for case in all_cases()}
ONES = torch.ones(4, dtype=torch.float64)


def crossing_tensors(programs):
    values = {c.value for c in facts(programs, 1).crossings}
    return [programs.train.values[v] for v in sorted(values)]


class Folded(nn.Module):
    """Rows and their places folded into one axis of k·b entries, sample by sample or place by place."""

    def __init__(self, sample_major: bool) -> None:
        super().__init__()
        self.before, self.within, self.after = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.sample_major = sample_major

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x.unflatten(1, (3, 2)))  # [b, 3, 5]
        if not self.sample_major:
            x = x.transpose(0, 1)
        shape = x.shape
        x = self.within(torch.tanh(x.reshape(-1, 5))).reshape(shape)  # [3·b, 5] inside
        if not self.sample_major:
            x = x.transpose(0, 1)
        out: Tensor = self.after(x).flatten(1)
        return out


def folded(sample_major):
    torch.manual_seed(0)
    return build_small(Folded(sample_major).double())


def test_an_axis_of_k_times_b_proven_sample_major_may_cross():
    built = folded(sample_major=True)
    assert (3, 0) in {(t.batch_factor, t.batch_axis) for t in crossing_tensors(built.programs)}


def test_an_axis_of_k_times_b_in_another_order_never_crosses():
    built = folded(sample_major=False)
    inside = [t for t in built.programs.train.values.values() if t.shape == (["mul", 3, "b"], 5)]
    assert inside
    assert all(t.batch_axis is None for t in inside)
    assert all(t.batch_axis is not None and t.batch_factor == 1 for t in crossing_tensors(built.programs))


@pytest.mark.parametrize("sample_major", [True, False])
def test_rows_of_a_folded_axis_are_sliced_sample_by_sample(sample_major):
    built = folded(sample_major)
    assert not any(b.coupled for b in facts(built.programs, 1).blocks)
    assert_shared_equals_whole(built, [vector_batches((6, 5), dtype=torch.float64)], stages=3 if sample_major else 2)


def assert_shared_equals_whole(built, rounds, stages):
    """Every stage's rows split over two parts give the numbers of the whole, in float64."""
    cuts = even_cuts(built.programs.train.block_count, stages)
    shared = Pipeline(built.programs, built.state, cuts, shares=dict.fromkeys(range(stages), 2))
    whole = uncut(built.programs, built.state)
    for number, batches in enumerate(rounds):
        shared.round(number, batches)
        whole.round(number, batches)
    before = {n: t for n, t in built.state.items() if n in shared.tensors()}
    assert distance(shared.tensors(), uncut_tensors(whole), before) <= 1e-8


QUICK = {"sequence_first", "padded_encoder"}
SHARED = [
    pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [pytest.mark.full])
    for c in CASES.values()
    if not c.batch_coupled and not c.hf and c.name != "adapters"
]


@pytest.mark.parametrize("case", SHARED)
def test_rows_may_be_shared_by_samples(case):
    """Among them a sequence-first encoder, token losses with unequal padding, and dropout."""
    built = build_case(case, case.make_model().double(), torch.float64)
    rounds = [micro_batches(case, (4, 3), seed=100 * r, dtype=torch.float64) for r in (1, 2)]
    assert_shared_equals_whole(built, rounds, stages=3)


def test_a_batch_that_is_not_the_first_axis_is_recorded_where_it_is(zoo):
    programs = zoo("sequence_first").programs
    axes = [t.batch_axis for t in crossing_tensors(programs)]
    assert axes.count(1) >= max(6, len(axes) - 2)
    assert all(t.shape[t.batch_axis] == "b" for t in crossing_tensors(programs))


def test_every_crossing_has_a_batch_axis(zoo):
    for name in ("mlp", "unet", "decoder", "padded_encoder", "residual_cnn"):
        for tensor in crossing_tensors(zoo(name).programs):
            assert tensor.batch_axis is not None


class Router(nn.Module):
    """A table, a mask and a scale made of the input alone, used in every layer; and a weighted value without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(WIDTH, device=x.device, dtype=x.dtype)
        rotary = torch.cos(places[None] * x.abs().amax(1, keepdim=True))
        mask = torch.full((WIDTH, WIDTH), float("-inf")).triu(1)[0].exp()
        for layer in self.layers:
            x = layer(x) * rotary + mask
        return x


def test_values_that_depend_on_no_parameter_are_computed_again_and_never_cross():
    torch.manual_seed(0)
    built = build_small(Router())
    carver = Carver(built.programs.train)
    cut = assert_cut_equals_uncut(built, [vector_batches((4, 3))], stages=4)
    crossing = {v for group in cut.groups for v in group[0].piece.sends}
    assert len(crossing) == 3
    assert crossing <= carver.weighted
    cosine = [i for i, n in enumerate(built.programs.train.nodes) if n.op == "aten.cos.default"]
    assert all(set(cosine) <= set(group[0].piece.nodes) for group in cut.groups)


def test_inputs_and_labels_go_straight_to_the_stages_that_use_them(zoo):
    programs = zoo("padded_encoder").programs
    count = programs.train.block_count
    known = {f.name: f.consumers for f in facts(programs, 1).feeds}
    assert known["input0"] == (0,)  # tokens: the embedding alone
    assert known["label"] == (count - 1,)
    assert len(known["input1"]) >= 3  # the padding mask: every attention
    cut = Pipeline(programs, zoo("padded_encoder").state, even_cuts(count, 3))
    mask = next(s.id for s in programs.train.sources if s.name == "input1")
    assert all(mask in group[0].piece.feeds for group in cut.groups)
    for value in {v for group in cut.groups for v in group[0].piece.receives}:
        assert programs.train.values[value].shape == ("b", 32, 64)  # activations, no masks


class Windowed(nn.Module):
    """Sizes everywhere that follow from the batch: views, expands, zeros, a division by it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        for layer in self.layers:
            x = layer(x).view(b, 2, 3) + torch.zeros(b, 1, 1).expand(b, 2, 3)
            x = torch.cat([x, x.new_ones(b, 2, 3)]).chunk(2)[0].reshape(b * 2, 3).view(b, -1)
        return x


@pytest.mark.parametrize("rows", [1, 3])
def test_sizes_follow_from_the_rows_at_hand(rows):
    torch.manual_seed(0)
    model = Windowed()
    built = build_small(model)
    cut = assert_cut_equals_uncut(built, [vector_batches((rows, rows + 1, rows))], stages=3)
    feeds = vectors(rows, 7)
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 3))
    assert torch.equal(cut.evaluate(feeds)[0], model(feeds["input"]).detach())


@pytest.mark.parametrize("name", ["mlp", "unet", "padded_encoder", "sequence_first", "decoder", "dropout_net"])
def test_partial_micro_batches_down_to_one_row(name, zoo):
    built = zoo(name)
    batches = micro_batches(CASES[name], (3, 1), seed=5)
    whole = uncut(built.programs, built.state)
    assert whole.round(0, batches).kind == "commit"
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2))
    cut.round(0, batches)
    for tensor in cut.tensors().values():
        assert torch.isfinite(tensor).all()


def test_a_squeeze_leaves_the_batch_alone_when_it_has_one_row():
    model = stepped(lambda self, i, x: x.unsqueeze(1).squeeze().unsqueeze(2).squeeze(0).squeeze((0, 2)))
    built = build_small(model)
    assert_cut_equals_uncut(built, [vector_batches((1, 2, 1))], stages=2)


def test_a_fixed_batch_size_is_refused_with_what_to_look_for():
    model = stepped(lambda self, i, x: x.view(4, -1))
    with pytest.raises(ModelError, match="look for a constant in a view or reshape"):
        build_small(model)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y / len(y)


def test_the_length_of_a_tensor_is_refused_naming_the_line():
    with pytest.raises(ModelError, match=r"test_rules_crossings.py:\d+: len\(…\).*write x.shape\[0\]"):
        build_small(Counting())


class Shared(nn.Module):
    """The input is used in every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(y) + x
        return y


def test_an_input_used_everywhere_is_fed_everywhere():
    torch.manual_seed(0)
    built = build_small(Shared())
    known = facts(built.programs, 1)
    assert {f.name: f.consumers for f in known.feeds}["input"] == (0, 1, 2, 3)
    assert len(known.crossings) == 3
    assert_cut_equals_uncut(built, [vector_batches((4, 2))], stages=4)


def test_integer_and_bool_inputs():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, WIDTH)
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, ids: Tensor, keep: Tensor, scale: Tensor) -> Tensor:
            x = self.one(self.table(ids)) * keep.unsqueeze(1)
            return torch.where(keep.unsqueeze(1), self.two(x), x) * scale.to(x.dtype).unsqueeze(1)

    def feeds(n, seed):
        random = torch.Generator().manual_seed(seed)
        return {
            "ids": torch.randint(10, (n,), generator=random),
            "keep": torch.rand(n, generator=random) > 0.3,
            "scale": torch.randint(1, 4, (n,), generator=random, dtype=torch.int32),
            "label": torch.randn(n, WIDTH, generator=random),
        }

    torch.manual_seed(0)
    built = build(Mixed(), F.mse_loss, feeds(4, 0), ONES)
    batches = [(feeds(n, 9 + n), torch.ones(n, dtype=torch.float64)) for n in (4, 3)]
    assert_cut_equals_uncut(built, [batches], stages=3)


def test_views_cost_no_memory_for_the_backward_pass():
    plain, viewed = (
        facts(build_small(stepped(step)).programs, 1).blocks
        for step in (lambda self, i, x: x * 2, lambda self, i, x: (x.view(-1, 2, 3).transpose(1, 2) * 2).reshape(-1, 6))
    )
    assert sum(b.stash_bytes for b in plain) == sum(b.stash_bytes for b in viewed) > 0


def test_a_value_that_holds_no_rows_is_no_place_to_cut():
    model = stepped(lambda self, i, x: x if i != 0 else (x.mean(0) + 0 * x))
    built = build_small(model)
    for tensor in crossing_tensors(built.programs):
        assert shape_of(tensor, 7)[tensor.batch_axis] == 7

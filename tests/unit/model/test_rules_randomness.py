"""Masks are a function of (seed, round, micro-batch, node, row): the same in every cut and every share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.compute.execution.execution import empty_registers
from potluck.compute.execution.interpreter import Interpreter
from potluck.compute.our_operators import Context, _attention_dropout
from potluck.compute.randomness import Draw, keep_mask
from potluck.errors import ModelError
from potluck.program.program import inputs_of, shape_of
from tests.models.zoo import dropout_net
from tests.unit.model.pipeline import CPU, Pipeline, differing, distance, even_cuts, uncut, uncut_tensors
from tests.unit.model.small_models import (
    WIDTH,
    assert_cut_equals_uncut,
    build_case,
    build_small,
    micro_batches,
    stepped,
    vector_batches,
)

HERE = Draw(seed=1, round=2, micro_batch=3, row_start=0)


def mask(rows=64, width=512, p=0.3, salt=1, draw=HERE):
    return keep_mask((rows, width), rows, p, salt, draw, CPU)


def test_a_share_draws_its_rows_of_the_whole_mask():
    whole = mask(rows=8)
    for start, stop in ((0, 3), (3, 8), (7, 8)):
        assert torch.equal(mask(rows=stop - start, draw=HERE._replace(row_start=start)), whole[start:stop])
    folded = keep_mask((8 * 3, 5), 8, 0.3, 1, HERE, CPU)  # three entries per sample
    part = keep_mask((2 * 3, 5), 2, 0.3, 1, HERE._replace(row_start=4), CPU)
    assert torch.equal(part, folded[12:18])


@pytest.mark.parametrize("field", ["seed", "round", "micro_batch", "row_start"])
def test_another_place_in_the_run_is_another_mask(field):
    other = mask(draw=HERE._replace(**{field: getattr(HERE, field) + 100}))
    agreement = (mask() == other).float().mean()
    assert float(agreement) == pytest.approx(0.7**2 + 0.3**2, abs=0.02)  # independent


def test_another_node_is_another_mask_and_another_seed_beyond_32_bits_too():
    for other in (mask(salt=2), mask(draw=HERE._replace(seed=1 + (1 << 32)))):
        assert float((mask() == other).float().mean()) == pytest.approx(0.58, abs=0.02)


def test_rows_are_independent():
    m = mask(rows=200, width=200).double() - 0.7
    correlation = (m @ m.T / 200 / 0.21).fill_diagonal_(0)
    assert float(correlation.abs().max()) < 0.4
    assert float(correlation.square().mean().sqrt()) == pytest.approx(200**-0.5, rel=0.1)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_keep_rate_is_right(p):
    rate = float(mask(rows=500, width=500, p=p).double().mean())
    assert rate == pytest.approx(1 - p, abs=4 * (p * (1 - p) / 250_000) ** 0.5)


def test_the_masks_never_change_between_versions():
    assert mask(rows=2, width=8, p=0.5).int().tolist() == [[1, 0, 0, 1, 0, 0, 1, 1], [1, 1, 0, 1, 1, 0, 1, 0]]


def drawn(model, rows=4, draw=HERE):
    """What the last dropout of a model gives for ones, by the program."""
    built = build_small(model)
    program = built.programs.train
    node = next(i for i, n in enumerate(program.nodes) if n.op.startswith("potluck."))
    code = Interpreter(program, [node], program.values, CPU)
    registers = empty_registers(program)
    for value in inputs_of(program.nodes[node]):
        registers[value] = torch.ones(shape_of(program.values[value], rows))
    code.forward(registers, Context(rows, draw, CPU))
    return registers[program.nodes[node].outputs[0]]


def test_dropout_scales_what_it_keeps():
    given = drawn(stepped(lambda self, i, x: F.dropout(x, 0.25) if i == 0 else x), rows=64)
    assert given.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


def test_two_dropouts_of_one_model_draw_differently():
    program = build_small(stepped(lambda self, i, x: F.dropout(x, 0.5))).programs.train
    nodes = [i for i, n in enumerate(program.nodes) if n.op == "potluck.dropout"]
    code = Interpreter(program, nodes, program.values, CPU)
    registers = empty_registers(program)
    for node in nodes:
        registers[inputs_of(program.nodes[node])[0]] = torch.ones(32, WIDTH)
    code.forward(registers, Context(32, HERE, CPU))
    first, second, third = (registers[program.nodes[n].outputs[0]] for n in nodes)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_dropout_of_everything_gives_zero():
    given = drawn(stepped(lambda self, i, x: F.dropout(x, 1.0) + x if i == 0 else x))
    assert not given.any()


@pytest.mark.parametrize(
    ("module", "shape"), [(nn.Dropout1d(0.5), (2, 3)), (nn.Dropout2d(0.5), (2, 3, 1))], ids=["1d", "2d"]
)
def test_channel_dropout_keeps_or_drops_whole_channels_of_a_sample(module, shape):
    given = drawn(
        stepped(lambda self, i, x: self.drop(x.view(-1, *shape)).flatten(1) if i == 0 else x, drop=module), 32
    )
    channels = given.view(32, 2, 3)
    assert ((channels == 0).all(2) | (channels == 2).all(2)).all()
    assert 0 < channels.mean() < 2
    assert (channels[:, 0, 0] != channels[:, 1, 0]).any()


def test_a_draw_for_what_has_no_rows_is_the_same_in_every_share():
    def weight_dropout(self, i, x):
        return F.linear(x, F.dropout(self.layers[0].weight, 0.5)) if i == 1 else x

    built = build_small(stepped(weight_dropout).double())
    shared = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2), shares={0: 2, 1: 2})
    whole = uncut(built.programs, built.state)
    batches = vector_batches((4, 5), dtype=torch.float64)
    shared.round(0, batches)
    whole.round(0, batches)
    assert distance(shared.tensors(), uncut_tensors(whole), built.state) <= 1e-8


def attend_to_itself(x: Any, **options: Any) -> Any:
    return F.scaled_dot_product_attention(x, x, x, **options).flatten(1)


DRAWING: dict[str, Any] = {
    "dropout": lambda self, i, x: F.dropout(x, 0.3, self.training),
    "in place": lambda self, i, x: F.dropout(x * 1, 0.3, self.training, inplace=True),
    "channels": lambda self, i, x: F.dropout2d(x.view(-1, 2, 3, 1), 0.3, self.training).flatten(1),
    "attention": lambda self, i, x: attend_to_itself(x.view(-1, 2, 3, 1), dropout_p=0.3 * self.training),
    "masked attention": lambda self, i, x: attend_to_itself(
        x.view(-1, 1, 3, 2), attn_mask=torch.ones(3, 3).tril().bool(), dropout_p=0.3 * self.training, scale=0.5
    ),
    "multi-head": lambda self, i, x: self.attend(*[x.view(-1, 3, 2)] * 3)[0].flatten(1) if i == 1 else x,
    "batch second": lambda self, i, x: (
        F.dropout(x.view(-1, 2, 3).transpose(0, 1), 0.3, self.training).transpose(0, 1).flatten(1)
    ),
    "input": lambda self, i, x: x + F.dropout(torch.ones_like(x), 0.3, self.training),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_with_dropout_on_a_cut_run_has_the_bits_of_the_uncut_one_and_a_shared_one_its_numbers(kind):
    attend = nn.MultiheadAttention(2, 2, dropout=0.3, batch_first=True)
    built = build_small(stepped(DRAWING[kind], attend=attend).double())
    assert any(n.op.startswith("potluck.") for n in built.programs.train.nodes)
    assert not any(n.op.startswith("potluck.") for n in built.programs.eval.nodes)
    rounds = [vector_batches((4, 3), seed=s, dtype=torch.float64) for s in (1, 2)]
    assert_cut_equals_uncut(built, rounds, stages=3)
    shared = Pipeline(
        built.programs, built.state, even_cuts(built.programs.train.block_count, 3), shares={0: 2, 1: 3, 2: 2}
    )
    whole = uncut(built.programs, built.state)
    for number, batches in enumerate(rounds):
        shared.round(number, batches)
        whole.round(number, batches)
    before = {n: t for n, t in built.state.items() if n in shared.tensors()}
    assert distance(shared.tensors(), uncut_tensors(whole), before) <= 1e-8


def test_another_seed_or_round_draws_other_masks():
    built = build_small(stepped(DRAWING["dropout"]))
    batches = vector_batches((4, 4))
    found = []
    for seed, number in ((3, 0), (3, 0), (4, 0), (3, 1)):
        run = uncut(built.programs, built.state, seed=seed)
        run.round(number, batches)
        found.append(uncut_tensors(run))
    assert differing(found[0], found[1]) == []
    assert differing(found[0], found[2])
    assert differing(found[0], found[3])


def test_attention_with_dropout_is_written_out_as_torch_computes_it():
    """With nothing dropped in the draw, the decomposition gives what the fused operator gives."""
    torch.manual_seed(0)
    q = torch.randn(2, 4, 5, 8, dtype=torch.float64)
    k, v = (torch.randn(2, 2, 5, 8, dtype=torch.float64) for _ in range(2))
    context = Context(2, HERE, CPU)
    for masked in (None, torch.ones(5, 5).tril().bool(), torch.randn(5, 5, dtype=torch.float64)):
        for causal in (False, True) if masked is None else (False,):
            expected = F.scaled_dot_product_attention(q, k, v, masked, 0.0, causal, scale=0.3, enable_gqa=True)
            found = _attention_dropout(context, q, k, v, masked, 1e-12, causal, 0.3, True, 1, axis=0)
            assert torch.allclose(found, expected, rtol=1e-9)


class Noisy(nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.layer, self.noise = nn.Linear(WIDTH, WIDTH), noise

    def forward(self, x):
        return self.layer(x) + self.noise(x)


@pytest.mark.parametrize(
    "noise",
    [
        torch.rand_like,
        lambda x: torch.randn(x.shape),
        lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: torch.empty_like(x).normal_(),
        lambda x: F.gumbel_softmax(x),
        lambda x: F.alpha_dropout(x, 0.5, training=True),
        lambda x: F.rrelu(x, training=True),
        lambda x: torch.randint(3, (WIDTH,)),
        lambda x: x[:, torch.randperm(WIDTH)],
    ],
    ids=["rand_like", "randn", "bernoulli", "normal_", "gumbel", "alpha_dropout", "rrelu", "randint", "randperm"],
)
def test_other_random_operators_are_refused_naming_the_line(noise):
    with pytest.raises(ModelError, match=r"test_rules_randomness.py:\d+: \w+ draws random numbers") as refused:
        build_small(Noisy(noise).train())
    assert "use dropout" in str(refused.value)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_inside_a_recurrent_network_is_refused_with_the_way_out(kind):
    def step(self, i, x):
        return self.net(x.view(-1, 2, 3))[0].flatten(1) if i == 1 else x

    with pytest.raises(ModelError, match=r"set its dropout to 0 and put nn.Dropout between"):
        build_small(stepped(step, net=kind(3, 3, 2, dropout=0.1, batch_first=True)))
    built = build_small(stepped(step, net=kind(3, 3, 2, batch_first=True)))
    assert_cut_equals_uncut(built, [vector_batches((4, 3))], stages=2)


def test_the_zoo_model_with_every_kind_of_dropout_when_rows_are_shared():
    case = dropout_net()
    built = build_case(case, case.make_model().double(), torch.float64)
    batches = micro_batches(case, (4, 3), seed=1, dtype=torch.float64)
    assert {n.op for n in built.programs.train.nodes} >= {"potluck.dropout", "potluck.attention_dropout"}
    shared = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2), shares={0: 2, 1: 3})
    whole = uncut(built.programs, built.state)
    shared.round(0, batches)
    whole.round(0, batches)
    assert distance(shared.tensors(), uncut_tensors(whole), built.state) <= 1e-8

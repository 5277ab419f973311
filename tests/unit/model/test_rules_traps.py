"""The traps of an exported graph: regions without gradient, devices, element types, outputs, two batch sizes."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.compute.execution.execution import empty_registers
from potluck.compute.execution.interpreter import Interpreter
from potluck.compute.our_operators import Context
from potluck.compute.randomness import Draw
from potluck.errors import ModelError
from potluck.model.build import build
from potluck.program.program import Here, inputs_of, shape_of
from tests.models.zoo import hf_bert_small
from tests.unit.model.pipeline import Pipeline, even_cuts
from tests.unit.model.small_models import (
    WIDTH,
    assert_cut_equals_uncut,
    assert_equals_eager,
    build_case,
    build_small,
    stepped,
    train_eagerly,
    vector_batches,
    vectors,
)

ONES = torch.ones(4, dtype=torch.float64)


def frozen_branch(self, i, x):
    with torch.no_grad():
        y = torch.tanh(x) * 2
        with torch.enable_grad():
            z = torch.sin(x)
    return y + z


def target_network(self, i, x):
    if i != 1:
        return x
    with torch.no_grad():
        target = self.layers[0](x)
    return x * target


@pytest.mark.parametrize("step", [frozen_branch, target_network], ids=lambda f: f.__name__)
def test_a_region_without_gradient_is_inlined_and_has_none(step):
    built = build_small(stepped(step))
    nodes = built.programs.train.nodes
    assert not any("wrap" in n.op for n in nodes)
    assert any(n.no_grad for n in nodes)
    values = built.programs.train.values
    for node in nodes:
        if node.no_grad:
            assert not any(values[o].requires_grad for o in node.outputs)
    if step is frozen_branch:  # its weight has one user, so it can be cut
        assert any(values[n.outputs[0]].requires_grad for n in nodes if n.op == "aten.sin.default")
        assert_equals_eager(built, stepped(step), stages=3)
    else:
        assert_equals_eager(built, stepped(step), stages=1)


def test_what_crosses_from_a_region_without_gradient_sends_none_back():
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.one, self.two = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            with torch.no_grad():
                x = self.stem(x)
            return self.two(torch.tanh(self.one(x)))

    torch.manual_seed(0)
    built = build_small(Teacher())
    cut = assert_cut_equals_uncut(built, [vector_batches((4, 3))], stages=3)
    assert list(cut.layout.gradients) == [(1, 2)]


def test_device_arguments_become_here():
    def step(self, i, x):
        steps = torch.arange(WIDTH, device=x.device, dtype=x.dtype) + torch.zeros(WIDTH, device="cpu")
        return x.to(x.device) * 0.1 * steps.to("cpu", torch.float32)

    built = build_small(stepped(step))
    program = built.programs.train
    arguments = [a for n in program.nodes for a in (*n.args, *n.kwargs.values())]
    assert sum(isinstance(a, Here) for a in arguments) >= 6
    assert not any(a in ("cpu", "cuda") for a in arguments if isinstance(a, str))
    meta = torch.device("meta")  # a device that is not the one it was traced on
    code = Interpreter(program, range(len(program.nodes)), program.values, meta)
    registers = empty_registers(program)
    for source in program.sources:
        registers[source.id] = torch.empty(shape_of(program.values[source.id], 4), device=meta)
    code.forward(registers, Context(4, Draw(0, 0, 0, 0), meta))
    assert registers[program.outputs[0]].device == meta
    assert_equals_eager(built, stepped(step), stages=2)


@pytest.mark.hf
@pytest.mark.full
def test_two_names_for_the_batch_size_are_one():
    """torch gives a padding mask a symbol of its own; both are the batch."""
    case = hf_bert_small()
    built = build_case(case)
    program = built.programs.train
    shapes = {s.name: program.values[s.id].shape for s in program.sources if s.kind == "input"}
    assert all(shape[0] == "b" for shape in shapes.values())
    assert len(shapes) == 3


def test_an_input_nobody_uses_is_fed_to_nobody():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, used, unused):
            return self.two(self.one(used))

    torch.manual_seed(0)
    feeds = {"used": vectors(4)["input"], "unused": torch.zeros(4, 3), "label": vectors(4)["label"]}
    built = build(Half(), F.mse_loss, feeds, ONES)
    cut = assert_cut_equals_uncut(built, [[(feeds, ONES)]], stages=2)
    names = {n for i in range(2) for n in cut.layout.feed_names("train", i)}
    assert names == {"used", "label"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_element_types(dtype):
    def make():
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(WIDTH)
        return stepped(lambda self, i, x: self.norm(torch.tanh(x)) if i == 1 else x, norm=norm).to(dtype)

    built = build_small(make())
    rounds = [vector_batches((4, 3), seed=s, dtype=dtype) for s in (1, 2)]
    cut = assert_cut_equals_uncut(built, rounds, stages=3)
    assert all(t.dtype == dtype for n, t in cut.tensors().items() if t.is_floating_point())
    model = train_eagerly(make().train(), rounds, F.mse_loss)
    for name, tensor in model.state_dict().items():
        if dtype == torch.bfloat16 and "running" in name:  # eager folds a statistic it has not rounded yet
            assert torch.allclose(cut.tensors()[name], tensor, rtol=0.02)
        else:
            assert torch.equal(cut.tensors()[name], tensor), name


class Named(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | None


@dataclasses.dataclass
class Record:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] | None = None


FORMS = {
    "tensor": (lambda x: x, lambda o: o, ("",)),
    "tuple": (lambda x: (x, x * 2), lambda o: o[0] + o[1], ("0", "1")),
    "list with none": (lambda x: [x, None, x + 1], lambda o: o[0], ("0", "2")),
    "dict": (lambda x: {"logits": x, "none": None, "more": x + 1}, lambda o: o["logits"], ("logits", "more")),
    "lone key": (lambda x: {"out": x}, lambda o: o["out"], ("out",)),
    "nested": (lambda x: {"a": (x, [x + 1]), "b": x}, lambda o: o["a"][0], ("a.0", "a.1.0", "b")),
    "named tuple": (lambda x: Named(x, x + 1), lambda o: o.left, ("left", "right")),
    "dataclass": (lambda x: Record(x, (x, x)), lambda o: o.logits, ("logits", "hidden.0", "hidden.1")),
}


@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_any_form_reach_the_loss_and_the_metrics(form):
    wrap, unwrap, names = FORMS[form]

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return wrap(self.two(self.one(x)))

    torch.manual_seed(0)
    model = Wrapped()
    built = build_small(model, lambda o, y: F.mse_loss(unwrap(o), y))
    program = built.programs.eval
    assert program.output_names == names
    assert len(program.outputs) == len(names)
    assert_cut_equals_uncut(built, [vector_batches((4, 3))], stages=2)
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2))
    feeds = vectors(3)
    given, expected = built.outputs.make(cut.evaluate(feeds)), model(feeds["input"])
    assert type(given) is type(expected)
    assert torch.equal(unwrap(given), unwrap(expected).detach())
    if form == "list with none":
        assert given[1] is None


def test_outputs_of_early_layers_and_of_the_input_itself_arrive_at_the_end():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

        def forward(self, x):
            made = [x]
            for layer in self.layers:
                made.append(layer(made[-1]))
            return {"out": made[-1], "early": made[1], "input": x, "twice": x * 2, "middle": made[2]}

    torch.manual_seed(0)
    model = Deep()
    built = build_small(model, lambda o, y: F.mse_loss(o["out"], y))
    assert built.programs.train.block_count == 6
    feeds = vectors(3)
    expected = model(feeds["input"])
    for stages in range(1, built.programs.train.block_count + 1):
        cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, stages))
        assert [bool(g[0].eval_piece.outputs) for g in cut.groups] == [False] * (stages - 1) + [True]
        given = built.outputs.make(cut.evaluate(feeds))
        assert {n: t.shape for n, t in given.items()} == {n: t.shape for n, t in expected.items()}
        assert all(torch.equal(given[n], expected[n].detach()) for n in expected)


def test_an_evaluation_may_be_reduced_inside_the_program():
    torch.manual_seed(0)
    model = stepped()
    built = build_small(model, eval_reduce=lambda o, y: (o - y).abs().sum(1))
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 2))
    feeds = vectors(3)
    (found,) = cut.evaluate(feeds)
    assert torch.equal(found, (model(feeds["input"]) - feeds["label"]).abs().sum(1).detach())
    assert built.programs.eval.values[built.programs.eval.outputs[0]].batch_axis == 0


def test_frozen_encoder_layers_take_no_fused_kernel():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True).requires_grad_(False)
    built = build_small(
        stepped(lambda self, i, x: self.encode(x.unsqueeze(1)).squeeze(1) if i == 1 else x, encode=layer)
    )
    assert not any("encoder" in n.op for n in built.programs.eval.nodes)


def test_a_trainable_tensor_the_model_does_not_hold():
    model: Any = stepped()
    outside = torch.ones(WIDTH, requires_grad=True)
    with pytest.raises(ModelError, match="not a parameter of the model"):
        build_small(model, lambda o, y: F.mse_loss(o * outside, y))
    regularised = build_small(model, lambda o, y: F.mse_loss(o, y) + 0.1 * model.layers[0].weight.square().sum())
    weight = next(s.id for s in regularised.programs.train.sources if s.name == "layers.0.weight")
    assert sum(weight in inputs_of(n) for n in regularised.programs.train.nodes) == 2

"""Convolutions take the fast one of several kernels for the same function."""

from __future__ import annotations

import platform

import pytest
import torch
from torch import nn

from potluck.compute import kernels
from potluck.compute.execution.interpreter import Interpreter
from potluck.compute.kernels import channels_last, leaks, order, quicker
from potluck.compute.our_operators import Context
from potluck.compute.randomness import Draw
from potluck.compute.runner import Rows
from potluck.model.build import build
from potluck.program.carve import Carver
from potluck.program.program import Items, Node, Ref, Tensor
from tests.unit.model.pipeline import Pipeline, uncut, uncut_tensors

CPU = torch.device("cpu")
X = Tensor(shape=("b", 32, 4, 4), dtype="float32", batch_axis=0)
BACKEND = torch._C._ConvBackend  # type: ignore[attr-defined]

pytestmark = [
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only done on x86"),
    pytest.mark.usefixtures("one_thread"),
]


def convolution(*more, points=1, groups=32):
    """A node, the values it takes, and tensors for them."""
    values = {0: X, 1: Tensor(shape=(64, groups, points, points), dtype="float32")}
    return Node(op="aten.conv2d.default", args=(Ref(0), Ref(1), *more), outputs=(2,)), values


def arguments(rows, *more, **kinds):
    node, values = convolution(*more, **kinds)
    given = [torch.ones(1), torch.ones(1), *([*m.items] if isinstance(m, Items) else m for m in more)]
    return quicker(node, given, values, rows, CPU)[2:]


def backend(x, weight, changed):
    bias, stride, padding, dilation, groups = changed
    return torch._C._select_conv_backend(x, weight, bias, stride, padding, dilation, False, [0, 0], groups, None)


@pytest.mark.parametrize("rows", [5, 10, 15])
@pytest.mark.parametrize("groups", [1, 4])
def test_few_rows_go_to_onednn_and_the_numbers_are_the_same(rows, groups):
    torch.manual_seed(0)
    width = 32 // groups
    x, weight = torch.randn(rows, 32, 4, 4, requires_grad=True), torch.randn(64, width, 1, 1, requires_grad=True)
    plain = [None, [1, 1], [0, 0], [1, 1], groups]
    given = (None, Items((1, 1)), Items((0, 0)), Items((1, 1)), groups) if groups > 1 else ()
    changed = arguments(rows, *given, groups=width)
    assert backend(x, weight, plain) == BACKEND.Slow2d
    assert backend(x, weight, changed) == BACKEND.Mkldnn
    found = []
    for more in (plain, changed):
        y = torch.ops.aten.conv2d.default(x, weight, *more)
        found.append((y, *torch.autograd.grad(y.sin().sum(), (x, weight))))
    for plain, quick in zip(*found, strict=True):
        assert plain.shape == quick.shape
        torch.testing.assert_close(plain, quick)


@pytest.mark.parametrize(
    ("rows", "more", "kinds"),
    [
        (4, (), {}),
        (16, (), {}),
        (10, (), {"points": 3}),
        (10, (None, Items((2, 2))), {}),
    ],
)
def test_the_rest_stays_as_it_is(rows, more, kinds):
    node, values = convolution(*more, **kinds)
    given = [0, 0, *([*m.items] if isinstance(m, Items) else m for m in more)]
    assert quicker(node, given, values, rows, CPU) is given


def test_with_two_threads_torch_chooses_onednn_itself():
    torch.set_num_threads(2)
    assert arguments(10) == []


def test_double_precision_stays_as_it_is():
    node, values = convolution()
    values[0] = Tensor(shape=X.shape, dtype="float64", batch_axis=0)
    given = [0, 0]
    assert quicker(node, given, values, 10, CPU) is given


@pytest.mark.parametrize(
    ("channels", "points", "side", "rows", "expected"),
    [
        (64, 1, 4, 16, torch.channels_last),
        (64, 3, 8, 16, torch.channels_last),
        (512, 3, 2, 16, torch.contiguous_format),  # more than 200 weights for every point
        (512, 3, 32, 16, torch.channels_last),
        (2048, 1, 2, 16, torch.channels_last),
    ],
)
def test_channels_come_last_unless_weights_are_many(channels, points, side, rows, expected):
    image = Tensor(shape=("b", channels, side, side), dtype="float32", batch_axis=0)
    values = {0: image, 1: Tensor(shape=(channels, channels, points, points), dtype="float32"), 2: image}
    node = Node(op="aten.conv2d.default", args=(Ref(0), Ref(1)), outputs=(2,))
    assert order(node, values, rows, CPU) == expected
    assert order(node, values, rows, torch.device("meta")) is None
    values[0] = Tensor(shape=image.shape, dtype="float64", batch_axis=0)
    assert order(node, values, rows, CPU) is None


class Wide(nn.Module):
    """Both kinds of convolutions, and a view of what they give that wants the usual order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.many = nn.Conv2d(48, 64, 3, padding="same")
        self.norm = nn.BatchNorm2d(64)
        self.few = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.last = nn.Linear(64 * 4, 4)

    def forward(self, x):
        y = self.few(torch.relu(self.norm(self.many(x.view(-1, 48, 2, 2)))))
        return self.last(y.view(x.shape[0], -1))


@pytest.fixture(scope="module")
def wide():
    """Samples of a model and its programs."""
    feeds = {"input": torch.randn(20, 48 * 4), "label": torch.randint(4, (20,))}
    return feeds, build(Wide(), nn.functional.cross_entropy, feeds, torch.ones(20))


def test_a_model_with_quick_kernels_trains_as_with_its_own(wide):
    feeds, built = wide
    found = []
    for kind in ("quick", "torch"):
        run = uncut(built.programs.with_kernels(kind), {n: t.clone() for n, t in built.state.items()})
        assert run.round(0, [(feeds, torch.ones(20, dtype=torch.float64))]).kind == "commit"
        found.append(uncut_tensors(run))
    quick, plain = found
    assert any(not torch.equal(quick[n], plain[n]) for n in plain), "the kernels are the same"
    for name, tensor in plain.items():
        torch.testing.assert_close(quick[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_what_is_said_to_have_its_channels_last_has_them(wide):
    feeds, built = wide
    program = built.programs.train
    registers = [None] * len(program.values)
    for source in program.sources:
        registers[source.id] = feeds[source.name] if source.kind == "input" else built.state[source.name]
    run = Interpreter(program, range(len(program.nodes)), program.values, CPU)
    run.forward(registers, Context(20, Draw(0, 0, 0, 0), CPU))
    made = {v for node in program.nodes for v in node.outputs if v >= 0 and len(program.values[v].shape) == 4}
    last = {v for v in made if registers[v].is_contiguous(memory_format=torch.channels_last)}
    assert channels_last(program, CPU) == last
    assert leaks(program, CPU) == frozenset()
    assert leaks(program, torch.device("meta")) == last
    assert len(last) == 4  # what comes of both convolutions, the norm and the kink; not the images
    assert channels_last(built.programs.with_kernels("torch").train, CPU) == frozenset()


@pytest.mark.parametrize(("size", "written"), [(3, "aten.conv2d.default"), (4, "aten.conv2d.padding")])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name_is_written_in_numbers_where_both_sides_are_alike(size, written, padding):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, size, padding=padding, dilation=2 if size == 3 else 1), nn.Flatten())
    feeds = {"input": torch.randn(4, 3, 9, 9)}
    feeds["label"] = torch.randn_like(model(feeds["input"]))
    built = build(model, nn.functional.mse_loss, feeds, torch.ones(4))
    (node,) = (n for n in built.programs.eval.nodes if n.op.startswith("aten.conv"))
    assert node.op == ("aten.conv2d.default" if padding == "valid" else written)
    cut = Pipeline(built.programs.with_kernels("torch"), built.state, [(0, built.programs.eval.block_count)])
    with torch.no_grad():
        assert torch.equal(cut.evaluate(feeds)[0], model(feeds["input"]))


@pytest.mark.parametrize(
    "look",
    [
        lambda y: y.as_strided((y.shape[0], 8), (8 * 9 * 9, 1)),
        lambda y: torch.view_as_complex(y[..., :8].reshape(-1, 8 * 9 * 4, 2)).abs(),
        lambda y: y.view_as(y.reshape(-1, 8 * 81)[:, : 8 * 81]),
        lambda y: y.view(-1, 81 * 8),
    ],
)
def test_whatever_looks_at_memory_gives_what_the_module_gives(look):
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x):
            return look(self.first(x))

    model = Looks()
    feeds = {"input": torch.randn(4, 3, 9, 9)}
    feeds["label"] = torch.randn_like(model(feeds["input"]))
    built = build(model, nn.functional.mse_loss, feeds, torch.ones(4))
    cut = Pipeline(built.programs, built.state, [(0, built.programs.eval.block_count)])
    with torch.no_grad():
        torch.testing.assert_close(cut.evaluate(feeds)[0], model(feeds["input"]))


def test_a_device_with_an_order_of_its_own_takes_what_arrives_in_it(wide, monkeypatch):
    feeds, built = wide
    monkeypatch.setattr(kernels, "_with_onednn", lambda device: False)
    last = built.programs.train.block_count
    cut = next(b for b in range(1, last) if leaks(built.programs.train, CPU) & set(piece_of(built, b, last).receives))
    layout = Pipeline(built.programs, built.state, [(0, cut), (cut, last)]).groups[1][0]
    (value,) = piece_of(built, cut, last).receives
    plain = torch.randn(20, 64, 2, 2)
    losses: list[float] = []
    for micro_batch, arrived in enumerate((plain, plain.contiguous(memory_format=torch.channels_last))):
        layout.forward(Rows(0, micro_batch, 0, 20), label_of(layout, feeds), {value: arrived}, 1.0)
        stash = layout._stashes[0, micro_batch]
        assert stash.tapped[value].is_contiguous()
        assert stash.loss is not None
        losses.append(float(stash.loss))
    assert losses[0] == losses[1]


def piece_of(built, start, stop):
    program = built.programs.train
    return Carver(program).piece(*program.block_range(start, stop))


def label_of(runner, feeds):
    names = {s.id: s.name for s in runner.train.sources if s.kind == "input"}
    return {value: feeds[names[value]] for value in runner.piece.feeds}

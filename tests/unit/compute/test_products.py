"""Products and linear layers that oneDNN computes are those that PyTorch computes, however the matrices lie."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from potluck.compute import layers, products
from potluck.compute.execution import interpreter
from potluck.compute.late_weights import Owed, owing, pay
from potluck.compute.layers import layer
from potluck.compute.products import product, times_transposed
from potluck.program.program import Node, Ref, Tensor
from tests.unit.compute.test_late_weight_gradients import runners, step

CPU = torch.device("cpu")
LARGE = {"rows": 256, "inside": 128, "features": 160}


@pytest.fixture(scope="module", autouse=True)
def onednn():
    """As on a processor where it is the faster one."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("only done on x86")
    patch = pytest.MonkeyPatch()
    patch.setattr(products, "_is_faster_here", lambda: True)
    patch.setattr(products, "_LEAST", 0)
    yield
    patch.undo()


def laid_out(how: str, rows: int, columns: int) -> torch.Tensor:
    """A matrix as it may come: by rows, by columns, or with gaps between them."""
    match how:
        case "rows":
            return torch.randn(rows, columns)
        case "columns":
            return torch.randn(columns, rows).t()
        case "gaps between rows":
            return torch.randn(rows, 3 * columns)[:, columns : 2 * columns]
        case _:
            return torch.randn(rows, columns, 3)[:, :, 1]


BIASES: dict[str, Callable[[int], torch.Tensor | None]] = {
    "none": lambda features: None,
    "plain": torch.randn,
    "gaps": lambda features: torch.randn(features, 4)[:, 2],
    "one for all": lambda features: torch.randn(1).expand(features),
}
LAYOUTS = st.sampled_from(["rows", "columns", "gaps between rows", "gaps everywhere"])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40), LAYOUTS, LAYOUTS, st.sampled_from(sorted(BIASES)))
def test_they_are_the_products(rows, inside, features, how, how_weight, bias_kind):
    torch.manual_seed(0)
    x, weight = laid_out(how, rows, inside), laid_out(how_weight, features, inside)
    bias = BIASES[bias_kind](features)
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(times_transposed(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(product(x, weight.t()).double(), x.double() @ weight.double().t(), rtol=1e-5, atol=1e-4)


def test_onednn_never_sees_gaps(monkeypatch):
    seen: list[torch.Tensor] = []

    class Spy:
        @staticmethod
        def default(x, weight, *more):
            seen.extend((x, weight))
            return torch.nn.functional.linear(x, weight)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", Spy)
    for how in ("rows", "columns", "gaps between rows", "gaps everywhere"):
        times_transposed(laid_out(how, 20, 30), laid_out(how, 10, 30))
    assert len(seen) == 8
    assert all(m.is_contiguous() or m.t().is_contiguous() for m in seen)


def node(op="aten.linear.default", *, dtype="float32", bias=True, rows=256, inside=128, features=160, spread=False):
    """A linear layer with the values that it reads: x, weight, bias."""
    addmm = op == "aten.addmm.default"
    values = {
        0: Tensor(shape=("b", inside), dtype=dtype, batch_axis=0),
        1: Tensor(shape=(inside, features) if addmm else (features, inside), dtype=dtype),
        2: Tensor(shape=("b", features) if spread else (features,), dtype=dtype),
        3: Tensor(shape=("b", features), dtype=dtype, batch_axis=0),
    }
    args = (Ref(2), Ref(0), Ref(1)) if addmm else (Ref(0), Ref(1), *((Ref(2),) if bias else ()))
    return Node(op=op, args=args, outputs=(3,)), values, rows


def found_layer(op="aten.linear.default", *, bias=True):
    found = layer_of(op=op, bias=bias)
    assert found is not None
    return found


def layer_of(device=CPU, **case):
    what, values, rows = node(**case)
    return layer(what, values, rows, device)


def parts(op, *, bias=True):
    torch.manual_seed(0)
    x = torch.randn(LARGE["rows"], LARGE["inside"], requires_grad=True)
    weight = torch.randn(LARGE["features"], LARGE["inside"])
    weight = (weight.t().contiguous() if "addmm" in op else weight).requires_grad_()
    more = torch.randn(LARGE["features"], requires_grad=True)
    if "addmm" in op:
        return (more, x, weight), (x, weight, more)
    return ((x, weight, more), (x, weight, more)) if bias else ((x, weight), (x, weight))


CASES = [("aten.linear.default", True), ("aten.linear.default", False), ("aten.addmm.default", True)]


@pytest.mark.parametrize(("op", "bias"), CASES)
def test_a_layer_gives_what_pytorch_gives(op, bias):
    plain = torch.addmm if "addmm" in op else torch.nn.functional.linear
    found = []
    for function in (plain, found_layer(op, bias=bias).function):
        arguments, wanted = parts(op, bias=bias)
        y = function(*arguments)
        found.append([y, *torch.autograd.grad(y.sin().sum(), wanted)])
    for expected, ours in zip(*found, strict=True):
        assert ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("op", "bias"), CASES)
def test_weight_gradients_that_waited_are_the_same_bits(op, bias):
    function, rule = found_layer(op, bias=bias)
    arguments, wanted = parts(op, bias=bias)
    y = function(*arguments)
    y.sin().sum().backward()
    at_once = [y, *(tensor.grad for tensor in wanted)]
    arguments, wanted = parts(op, bias=bias)
    owed: list[Owed] = []
    y = owing(rule, function)(owed, *arguments)
    y.sin().sum().backward()
    assert wanted[1].grad is None
    pay(owed)
    for expected, found in zip(at_once, [y, *(tensor.grad for tensor in wanted)], strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("trained", [0, 1, 2])
@pytest.mark.parametrize("op", ["aten.linear.default", "aten.addmm.default"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_does(op, trained):
    arguments, named = parts(op)
    for place, tensor in enumerate(named):
        tensor.requires_grad_(place == trained)
    found_layer(op).function(*arguments).sum().backward()
    assert [tensor.grad is not None for tensor in named] == [place == trained for place in range(3)]


def test_rows_of_sequences():
    function = found_layer().function
    x = torch.randn(4, 64, LARGE["inside"], requires_grad=True)
    weight = torch.randn(LARGE["features"], LARGE["inside"], requires_grad=True)
    y = function(x, weight)
    torch.testing.assert_close(y, torch.nn.functional.linear(x, weight), rtol=1e-4, atol=1e-4)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize(
    ("expected", "case"),
    [
        (True, {}),
        (True, {"op": "aten.addmm.default"}),
        (False, {"dtype": "float64"}),
        (False, {"rows": 1}),  # a call costs more than is gained
        (False, {"op": "aten.addmm.default", "spread": True}),  # not a bias, but something that is added
        (False, {"op": "aten.mm.default"}),
    ],
)
def test_where_it_is_done(expected, case):
    assert (layer_of(**case) is not None) is expected


def test_only_on_a_processor_where_it_is_faster(monkeypatch):
    assert layer_of(torch.device("meta")) is None
    monkeypatch.setattr(products, "_is_faster_here", lambda: False)
    assert layer_of() is None


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        (True, "vendor_id\t: AuthenticAMD\ncpu family\t: 26\n"),
        (False, "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n"),
        (False, "vendor_id\t: GenuineIntel\ncpu family\t: 26\n"),
        (False, "processor\t: 0\n"),
    ],
)
def test_which_processors_are_known(tmp_path, expected, told):
    (tmp_path / "cpuinfo").write_text(told)
    assert products._is_wide(tmp_path / "cpuinfo") is expected
    assert not products._is_wide(tmp_path / "none")


def test_what_is_not_needed_for_gradients_is_not_kept():
    function = found_layer().function
    kept: list[tuple[int, ...]] = []
    x, weight = torch.randn(256, 128, requires_grad=True), torch.randn(160, 128)

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
        function(x, weight)
    assert kept == [(160, 128)], "the weight is frozen: nobody wants its gradient"


class Deep(nn.Module):
    """Linear layers on rows of sequences, one with a weight of the other orientation, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.frozen, self.out = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(5, 2)
        self.weight, self.bias = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(5))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.frozen(torch.tanh(self.into(x.flatten(2).transpose(1, 2))))).mean(1)
        out: torch.Tensor = self.out(torch.tanh(torch.addmm(self.bias, x, self.weight)))
        return out


def test_a_program_takes_them_and_late_weights_are_the_same_bits(monkeypatch):
    monkeypatch.setattr(layers, "_LEAST", 0)
    asked: list[str] = []
    choose = layers.layer

    def noted(node, *more):
        found = choose(node, *more)
        asked.extend([node.op] * (found is not None))
        return found

    monkeypatch.setattr(interpreter, "layer", noted)
    whole, split, feeds = runners(Deep())
    for j in range(2):
        step(whole, feeds, j)
        step(split, feeds, j)
    for j in range(2):
        split.weights(0, j)
    assert set(asked) == {"aten.linear.default", "aten.addmm.default"}
    found = split.gradients(0)
    for name, gradient in whole.gradients(0).items():
        assert (gradient is None) == name.startswith("frozen")
        late = found[name]
        assert late is gradient is None or torch.equal(gradient, late), name  # type: ignore[arg-type]

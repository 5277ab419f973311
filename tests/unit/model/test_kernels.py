"""A convolution of single points goes to oneDNN however few its rows are, and gives the same numbers."""

from __future__ import annotations

import platform

import pytest
import torch

from potluck.model.kernels import quicker
from potluck.model.program import Items, Node, Ref, Tensor

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

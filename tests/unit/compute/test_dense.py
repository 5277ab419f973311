"""A convolution as a matrix product gives what the convolution gives."""

from __future__ import annotations

import platform

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.compute.dense import DENSE, dense, is_dense
from potluck.compute.kernels import is_product, order
from potluck.compute.late_weights import Owed, owing, pay
from potluck.program.program import Items, Node, Ref, Tensor

CPU = torch.device("cpu")


@st.composite
def convolutions(draw):
    """Sizes of one that is a matrix product: single points at any stride, or kernels that give a single point."""
    rows, channels, outputs = (draw(st.integers(1, 4)) for _ in range(3))
    down, across = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    if draw(st.booleans()):
        return rows, channels, outputs, (down, across), (1, 1), [draw(st.integers(1, 3))] * 2, [0, 0]
    padding = [draw(st.integers(0, 2)), draw(st.integers(0, 2))]
    kernel, stride = [], []
    for size, pad in zip((down, across), padding, strict=True):
        kernel.append(draw(st.integers(pad + 1, size + 2 * pad)))
        stride.append(size + 2 * pad)  # so far that there is no second point
    return rows, channels, outputs, (down, across), tuple(kernel), stride, padding


def tensors(case, *, bias):
    rows, channels, outputs, size, kernel, _, _ = case
    torch.manual_seed(0)
    x = torch.randn(rows, channels, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(outputs, channels, *kernel, dtype=torch.float64, requires_grad=True)
    return x, weight, torch.randn(outputs, dtype=torch.float64, requires_grad=True) if bias else None


def results(function, case, *, bias):
    x, weight, more = tensors(case, bias=bias)
    y = function(x, weight, more, case[5], case[6])
    wanted = [x, weight] if more is None else [x, weight, more]
    return [y, *torch.autograd.grad(y.sin().sum(), wanted)]


@settings(max_examples=200, deadline=None)
@given(convolutions(), st.booleans())
def test_it_is_the_convolution(case, bias):
    plain = results(torch.nn.functional.conv2d, case, bias=bias)
    for expected, found in zip(plain, results(dense, case, bias=bias), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)


@settings(max_examples=100, deadline=None)
@given(convolutions(), st.booleans())
def test_weight_gradients_that_waited_are_the_same_bits(case, bias):
    at_once = results(dense, case, bias=bias)
    x, weight, more = tensors(case, bias=bias)
    owed: list[Owed] = []
    y = owing(DENSE, dense)(owed, x, weight, more, case[5], case[6])
    y.sin().sum().backward()
    assert weight.grad is None
    pay(owed)
    late = [y, x.grad, weight.grad] if more is None else [y, x.grad, weight.grad, more.grad]
    for expected, found in zip(at_once, late, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("trained", ["x", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_does(trained):
    case = (3, 4, 5, (2, 2), (3, 3), [2, 2], [1, 1])
    found = {}
    for function in (torch.nn.functional.conv2d, dense):
        given = dict(zip(("x", "weight", "bias"), tensors(case, bias=True), strict=True))
        for name, tensor in given.items():
            tensor.requires_grad_(name == trained)
        function(given["x"], given["weight"], given["bias"], case[5], case[6]).sin().sum().backward()
        found[function] = {name: tensor.grad for name, tensor in given.items()}
    plain, ours = found.values()
    assert [name for name, gradient in ours.items() if gradient is not None] == [trained]
    torch.testing.assert_close(ours[trained], plain[trained])


def test_without_a_bias_or_settings_among_the_arguments():
    x, weight = torch.randn(3, 4, 2, 2, requires_grad=True), torch.randn(5, 4, 1, 1, requires_grad=True)
    owed: list[Owed] = []
    y = owing(DENSE, dense)(owed, x, weight)
    y.sum().backward()
    pay(owed)
    torch.testing.assert_close(y, torch.nn.functional.conv2d(x, weight))
    assert weight.grad is not None


def judged(rows, channels, outputs, side, kernel, stride=1, padding=0, groups=1, dilation=1):
    out = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    values = {
        0: Tensor(shape=("b", channels, side, side), dtype="float32", batch_axis=0),
        1: Tensor(shape=(outputs, channels // groups, kernel, kernel), dtype="float32"),
        2: Tensor(shape=("b", outputs, out, out), dtype="float32", batch_axis=0),
    }
    more = (None, Items((stride, stride)), Items((padding, padding)), Items((dilation, dilation)), groups)
    node = Node(op="aten.conv2d.default", args=(Ref(0), Ref(1), *more), outputs=(2,))
    return is_dense(node, values, rows), node, values


@pytest.mark.parametrize(
    ("expected", "sizes"),
    [
        (True, {"rows": 120, "channels": 8, "outputs": 8, "side": 2, "kernel": 1}),
        (False, {"rows": 120, "channels": 8, "outputs": 8, "side": 8, "kernel": 1}),  # many points
        (True, {"rows": 4, "channels": 8, "outputs": 8, "side": 8, "kernel": 1}),
        (True, {"rows": 120, "channels": 8, "outputs": 8, "side": 8, "kernel": 1, "stride": 2}),
        (True, {"rows": 40, "channels": 8, "outputs": 8, "side": 1, "kernel": 3, "padding": 1}),
        (True, {"rows": 40, "channels": 8, "outputs": 8, "side": 2, "kernel": 3, "padding": 1, "stride": 2}),
        (False, {"rows": 40, "channels": 8, "outputs": 8, "side": 4, "kernel": 3, "padding": 1}),
        (False, {"rows": 40, "channels": 8, "outputs": 8, "side": 1, "kernel": 3, "padding": 1, "groups": 8}),
        (False, {"rows": 40, "channels": 8, "outputs": 8, "side": 1, "kernel": 3, "padding": 2, "dilation": 2}),
        (False, {"rows": 40, "channels": 8, "outputs": 8, "side": 1, "kernel": 1, "padding": 1, "stride": 3}),
    ],
)
def test_where_it_is_done(expected, sizes):
    assert judged(**sizes)[0] is expected


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only done on x86")
def test_it_gets_its_channels_last_and_only_on_a_processor():
    _, node, values = judged(rows=40, channels=2048, outputs=512, side=1, kernel=1)
    assert is_product(node, values, 40, CPU)
    assert order(node, values, 40, CPU) == torch.channels_last
    assert not is_product(node, values, 40, torch.device("meta"))
    doubled = {**values, 0: Tensor(shape=values[0].shape, dtype="float64", batch_axis=0)}
    assert not is_product(node, doubled, 40, CPU)

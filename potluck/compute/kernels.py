"""Arguments and memory orders that mean the same and get a faster kernel."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

import torch

from potluck.compute.dense import is_dense
from potluck.program.program import Node, Program, Ref, Tensor, evaluate_size, inputs_of, shape_of

# Of a convolution of single points on one thread, PyTorch leaves fewer than 16 rows to a kernel that multiplies row by
# row and reads all weights again for each: 10 rows of ResNet-50 take longer than 16. A spacing between points means
# nothing where there is one, but with it PyTorch asks oneDNN, as it does with 16 rows or two threads. Of fewer than
# five rows the other one is as fast.
_FEWEST, _ENOUGH = 5, 16
_AXES = 4
_STRIDE, _DILATION = 3, 5  # places among the arguments
_DEFAULTS = (None, [1, 1], [0, 0], [1, 1], 1)  # from the bias on

# With the channels of a point side by side, BatchNorm and convolutions of few weights take half the time or less
# (MobileNetV2 in all: 0.6). Where a convolution has many weights for every point that it gives, oneDNN's kernels for
# that order spend their time on rearranging weights: those get the usual order, for themselves alone.
_MANY = 200  # weights for every point given
_BY_STRIDES = ("aten.as_strided.default", "aten.view_as_complex.default", "aten.view.dtype")
_REARRANGING = (
    "aten.permute.default", "aten.transpose.int", "aten.view.default", "aten._unsafe_view.default",
    "aten.reshape.default", "aten.matmul.default",
)  # fmt: skip


def quicker(
    node: Node, arguments: list[Any], values: Mapping[int, Tensor], rows: int, device: torch.device
) -> list[Any]:
    """The arguments of a node for so many rows, changed where that gives a faster kernel for the same function."""
    if node.op != "aten.conv2d.default" or node.kwargs or not _with_onednn(device):
        return arguments
    if torch.get_num_threads() > 1:
        return arguments  # PyTorch chooses oneDNN itself
    x, weight = (values[arg.id] for arg in node.args[:2] if isinstance(arg, Ref))
    first, points = evaluate_size(x.shape[0], rows), tuple(weight.shape[2:])
    if points != (1, 1) or x.dtype != "float32" or len(x.shape) != 4 or not _FEWEST <= first < _ENOUGH:
        return arguments
    changed = arguments + list(_DEFAULTS[len(arguments) - 2 :])
    if changed[_STRIDE] not in ([1, 1], [1], 1):
        return arguments  # these go to oneDNN anyway
    changed[_DILATION] = [2, 2]
    return changed


def is_quick(program: Program) -> bool:
    """Whether we may choose memory orders: not where the model itself looks at them."""
    return program.kernels == "quick" and not any(node.op in _BY_STRIDES for node in program.nodes)


def is_product(node: Node, values: Mapping[int, Tensor], rows: int, device: torch.device) -> bool:
    """Whether to run an operator of so many rows as a matrix product."""
    return _in_order(node, values) and _with_onednn(device) and is_dense(node, values, rows)


def order(node: Node, values: Mapping[int, Tensor], rows: int, device: torch.device) -> torch.memory_format | None:
    """The memory order in which an operator should get its input; what it gives should have its channels last then.

    None leaves both as they are.
    """
    if not _in_order(node, values) or not _with_onednn(device):
        return None
    weight = shape_of(values[inputs_of(node)[1]], rows)
    images, _, *place = shape_of(values[node.outputs[0]], rows)
    few = math.prod(weight) <= _MANY * images * math.prod(place)
    if few or weight[2:] == (1, 1) or is_dense(node, values, rows):
        return torch.channels_last
    return torch.contiguous_format


def channels_last(program: Program, device: torch.device) -> frozenset[int]:
    """Values that have their channels last in memory when the program runs on a device."""
    return _ordered(program) if _with_onednn(device) else frozenset()


def leaks(program: Program, device: torch.device) -> frozenset[int]:
    """Values that come to a device with their channels last from others, where that is not its own order."""
    return frozenset() if _with_onednn(device) else _ordered(program)


def _ordered(program: Program) -> frozenset[int]:
    found: set[int] = set()
    if is_quick(program):
        for node in program.nodes:
            kept = node.op not in _REARRANGING and any(value in found for value in inputs_of(node))
            if kept or _in_order(node, program.values):
                found.update(v for v in node.outputs if v >= 0 and len(program.values[v].shape) == _AXES)
    return frozenset(found)


def _in_order(node: Node, values: Mapping[int, Tensor]) -> bool:
    """Whether the memory order of an operator's input is ours to choose."""
    if node.op != "aten.conv2d.default" or node.kwargs or [type(arg) for arg in node.args[:2]] != [Ref, Ref]:
        return False
    known = [values[v] for v in (*inputs_of(node)[:2], node.outputs[0])]
    return known[0].dtype == "float32" and all(len(value.shape) == _AXES for value in known)


def _with_onednn(device: torch.device) -> bool:
    """Whether oneDNN has fast kernels for all this here: elsewhere than on x86 it may have none."""
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return device.type == "cpu" and on_x86 and torch.backends.mkldnn.is_available()

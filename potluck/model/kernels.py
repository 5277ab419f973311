"""Arguments that mean the same and get a faster kernel."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from potluck.model.program import Node, Ref, Tensor, evaluate_size

# Of a convolution of single points on one thread, PyTorch leaves fewer than 16 rows to a kernel that multiplies row by
# row and reads all weights again for each: 10 rows of ResNet-50 take longer than 16. A spacing between points means
# nothing where there is one, but with it PyTorch asks oneDNN, as it does with 16 rows or two threads. Of fewer than
# five rows the other one is as fast.
_FEWEST, _ENOUGH = 5, 16
_STRIDE, _DILATION = 3, 5  # places among the arguments
_DEFAULTS = (None, [1, 1], [0, 0], [1, 1], 1)  # from the bias on


def quicker(
    node: Node, arguments: list[Any], values: Mapping[int, Tensor], rows: int, device: torch.device
) -> list[Any]:
    """The arguments of a node for so many rows, changed where that gives a faster kernel for the same function."""
    if node.op != "aten.conv2d.default" or node.kwargs or not _with_onednn(device):
        return arguments
    x, weight = (values[arg.id] for arg in node.args[:2] if isinstance(arg, Ref))
    first, points = evaluate_size(x.shape[0], rows), tuple(weight.shape[2:])
    if points != (1, 1) or x.dtype != "float32" or len(x.shape) != 4 or not _FEWEST <= first < _ENOUGH:
        return arguments
    changed = arguments + list(_DEFAULTS[len(arguments) - 2 :])
    if changed[_STRIDE] not in ([1, 1], [1], 1):
        return arguments  # these go to oneDNN anyway
    changed[_DILATION] = [2, 2]
    return changed


def _with_onednn(device: torch.device) -> bool:
    """Whether oneDNN has fast kernels for this here: elsewhere than on x86 it may have none with a spacing."""
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return device.type == "cpu" and on_x86 and torch.get_num_threads() == 1 and torch.backends.mkldnn.is_available()

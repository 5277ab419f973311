"""Convolutions that are matrix products.

One that looks at single points multiplies each of them with the same matrix; one that gives a single point multiplies
all that it looks at with one matrix. As matrix products, with the channels of a point side by side, they take down to
a fifth of the time of a convolution where images have few points: oneDNN's kernels are made for many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from potluck.compute.late_weights import CONVOLUTION, Gradients
from potluck.compute.products import product, times_transposed
from potluck.program.program import Node, Tensor, inputs_of, shape_of

_FEW_OF_AN_IMAGE, _FEW_IN_ALL = 4, 400  # points: with more, the convolution is faster
_DEFAULTS = (None, [1, 1], [0, 0], [1, 1], 1)  # of arguments from the bias on
_PLAIN = [1, 1]


class _Span(NamedTuple):
    """Along one axis: where the points lie that count, and the part of the kernel that meets them."""

    points: slice
    kernel: slice


def is_dense(node: Node, values: Mapping[int, Tensor], rows: int) -> bool:
    """Whether a convolution of so many rows is faster as a matrix product."""
    stride, padding, dilation, groups = _settings(node.args)
    x, weight = inputs_of(node)[:2]
    images, _, *place = shape_of(values[node.outputs[0]], rows)
    points = math.prod(place)
    kernel = list(shape_of(values[weight], rows)[2:])
    if groups != 1 or dilation != _PLAIN or not points or not images:
        return False
    if kernel == _PLAIN and padding == [0, 0]:
        return points <= _FEW_OF_AN_IMAGE or points * images <= _FEW_IN_ALL or stride != _PLAIN
    size = shape_of(values[x], rows)[2:]
    met = [_span(s, k, p) for s, k, p in zip(size, kernel, padding, strict=True)]
    return points == 1 and all(span.kernel.stop > span.kernel.start for span in met)


def dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *settings: Any) -> torch.Tensor:
    """What the convolution gives, computed as a matrix product."""
    found: torch.Tensor = _Dense.apply(x, weight, bias, settings)  # type: ignore[no-untyped-call]
    return found


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: Sequence[Any]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, *(() if bias is None else (bias,)))
        ctx.settings = settings
        matrix, used = _matrix(x, weight, settings), _used(x, weight, settings)
        given = times_transposed(used.reshape(-1, matrix.shape[1]), matrix, bias)
        images, down, across, _ = used.shape
        place = (1, 1) if _one_point(weight) else (down, across)
        return given.view(images, *place, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, *bias = ctx.saved_tensors
        arguments = (x, weight, bias[0] if bias else None, *ctx.settings)
        wanted = ctx.needs_input_grad
        back = _back(gradients[0], arguments) if wanted[0] else None
        of_weight = _of_weight(gradients[0], arguments) if wanted[1] else None
        return back, of_weight, _of_bias(gradients[0]) if wanted[2] else None, None


def _settings(arguments: Sequence[Any]) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation and groups, of a node's or of a call's arguments."""
    given = [getattr(a, "items", a) for a in arguments[3:]]
    stride, padding, dilation, groups = given + list(_DEFAULTS[1 + len(given) :])
    return _each(stride), _each(padding), _each(dilation), groups


def _each(given: int | Sequence[int]) -> list[int]:
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * 2 if len(numbers) == 1 else numbers


def _span(size: int, kernel: int, padding: int) -> _Span:
    """Of a convolution that gives one point: it lies `padding` before the first of `size`."""
    end = min(size, kernel - padding)
    return _Span(slice(0, end), slice(padding, padding + end))


def _one_point(weight: torch.Tensor) -> bool:
    return weight.shape[2:] != (1, 1)


def _places(x: torch.Tensor, weight: torch.Tensor, settings: Sequence[Any]) -> tuple[list[slice], list[slice]]:
    """Points of the images, and parts of the kernel, that meet."""
    stride, padding, _, _ = _settings((None, None, None, *settings))
    if not _one_point(weight):
        return [slice(None, None, step) for step in stride], [slice(None), slice(None)]
    spans = [_span(s, k, p) for s, k, p in zip(x.shape[2:], weight.shape[2:], padding, strict=True)]
    return [s.points for s in spans], [s.kernel for s in spans]


def _matrix(x: torch.Tensor, weight: torch.Tensor, settings: Sequence[Any]) -> torch.Tensor:
    """Outputs by what goes in: points, and of each its channels."""
    _, (down, across) = _places(x, weight, settings)
    return weight[:, :, down, across].permute(0, 2, 3, 1).flatten(1)


def _used(x: torch.Tensor, weight: torch.Tensor, settings: Sequence[Any]) -> torch.Tensor:
    """The points that count, each with its channels side by side."""
    (down, across), _ = _places(x, weight, settings)
    return x.permute(0, 2, 3, 1)[:, down, across]


def _rows(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.permute(0, 2, 3, 1).reshape(-1, gradient.shape[1])


def _back(gradient: torch.Tensor, arguments: Sequence[Any]) -> torch.Tensor:
    x, weight, settings = arguments[0], arguments[1], arguments[3:]
    (down, across), _ = _places(x, weight, settings)
    shape, used = x.permute(0, 2, 3, 1).shape, _used(x, weight, settings).shape
    back = product(_rows(gradient), _matrix(x, weight, settings)).view(used)
    if used != shape:
        whole = back.new_zeros(shape)
        whole[:, down, across] = back
        back = whole
    return back.permute(0, 3, 1, 2)


def _of_weight(gradient: torch.Tensor, arguments: Sequence[Any]) -> torch.Tensor:
    x, weight, settings = arguments[0], arguments[1], arguments[3:]
    _, (down, across) = _places(x, weight, settings)
    met = weight[:, :, down, across].permute(0, 2, 3, 1).shape
    of_matrix = product(_rows(gradient).t(), _used(x, weight, settings).reshape(-1, met[1:].numel()))
    of_part = of_matrix.view(met).permute(0, 3, 1, 2)
    if of_part.shape == weight.shape:
        return of_part.contiguous()
    of_weight = torch.zeros_like(weight)
    of_weight[:, :, down, across] = of_part
    return of_weight


def _of_bias(gradient: torch.Tensor) -> torch.Tensor:
    return _rows(gradient).sum(0)


def _late(gradient: torch.Tensor, arguments: Sequence[Any]) -> Gradients:
    found: Gradients = ((arguments[1], _of_weight(gradient, arguments)),)
    bias = arguments[2] if len(arguments) > 2 else None
    return found if bias is None else (*found, (bias, _of_bias(gradient)))


DENSE = CONVOLUTION._replace(back=_back, late=_late)

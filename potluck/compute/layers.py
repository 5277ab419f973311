"""Linear layers whose products oneDNN computes, where it is faster than what PyTorch takes (`products.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from potluck.compute.late_weights import RULES, Arguments, Gradients, Rule
from potluck.compute.products import by_onednn, product, times_transposed
from potluck.program.program import Node, Ref, Tensor, shape_of

_LEAST = 2**22  # multiplications: for fewer, a call costs more than is gained


class Layer(NamedTuple):
    """A way to compute a linear layer, and its gradients for a backward pass that puts off those of weights."""

    function: Callable[..., torch.Tensor]
    rule: Rule


class _Kind(NamedTuple):
    places: Rule  # where the input, the weight and the bias are among the arguments
    forward: Callable[..., torch.Tensor]
    back: Callable[[torch.Tensor, Arguments], torch.Tensor]
    of_weight: Callable[[torch.Tensor, Arguments], torch.Tensor]


def layer(node: Node, values: Mapping[int, Tensor], rows: int, device: torch.device) -> Layer | None:
    """How to run this node for so many rows, if it is a linear layer that pays."""
    kind = _KINDS.get(node.op)
    if kind is None or node.kwargs or not by_onednn(device) or not all(isinstance(a, Ref) for a in node.args):
        return None
    places = [a.id for a in node.args if isinstance(a, Ref)]
    rule = kind.places
    x, weight = (shape_of(values[places[place]], rows) for place in (rule.place, rule.weight))
    if {values[place].dtype for place in places} != {"float32"} or len(x) < 2 or len(weight) != 2:
        return None
    features = weight[rule.features]
    spread = rule.bias < len(places) and tuple(shape_of(values[places[rule.bias]], rows)) != (features,)
    return None if spread or math.prod(x) * features < _LEAST else _LAYERS[node.op]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: _Kind, *arguments: torch.Tensor) -> torch.Tensor:
        # Each of input and weight is kept only where the other one's gradient is wanted: most weights may be frozen.
        x, weight = kind.places.place, kind.places.weight
        wanted = ctx.needs_input_grad[1:]
        kept = [a if wanted[{x: weight, weight: x}.get(i, i)] else None for i, a in enumerate(arguments)]
        ctx.save_for_backward(*kept)
        ctx.kind = kind
        return kind.forward(*arguments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        kind, arguments, gradient = ctx.kind, ctx.saved_tensors, gradients[0]
        wanted = dict(enumerate(ctx.needs_input_grad[1:]))
        found: list[torch.Tensor | None] = [None] * len(arguments)
        if wanted[kind.places.place]:
            found[kind.places.place] = kind.back(gradient, arguments)
        if wanted[kind.places.weight]:
            found[kind.places.weight] = kind.of_weight(gradient, arguments)
        if wanted.get(kind.places.bias):
            found[kind.places.bias] = _of_bias(gradient)
        return None, *found


def _made(kind: _Kind) -> Layer:
    places = kind.places

    def function(*arguments: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Product.apply(kind, *arguments)  # type: ignore[no-untyped-call]
        return found

    def late(gradient: torch.Tensor, arguments: Arguments) -> Gradients:
        found: Gradients = ((arguments[places.weight], kind.of_weight(gradient, arguments)),)
        has_bias = places.bias < len(arguments) and arguments[places.bias] is not None
        return (*found, (arguments[places.bias], _of_bias(gradient))) if has_bias else found

    return Layer(function, places._replace(back=kind.back, late=late))


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return times_transposed(_rows(x), weight, bias).view(*x.shape[:-1], len(weight))


def _linear_back(gradient: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    return product(_rows(gradient), arguments[1]).view(*gradient.shape[:-1], -1)


def _linear_of_weight(gradient: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    return product(_rows(gradient).t(), _rows(arguments[0]))


def _addmm(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return times_transposed(x, weight.t(), bias)


def _addmm_back(gradient: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    return times_transposed(gradient, arguments[2])


def _addmm_of_weight(gradient: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    return product(arguments[1].t(), gradient)


def _of_bias(gradient: torch.Tensor) -> torch.Tensor:
    return _rows(gradient).sum(0)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


_KINDS: Mapping[str, _Kind] = {
    "aten.linear.default": _Kind(RULES["aten.linear.default"], _linear, _linear_back, _linear_of_weight),
    "aten.addmm.default": _Kind(RULES["aten.addmm.default"], _addmm, _addmm_back, _addmm_of_weight),
}
_LAYERS = {op: _made(kind) for op, kind in _KINDS.items()}

"""Operators whose weight gradients can wait.

An earlier stage waits for the gradient of what it sent, nobody for those of weights before the round ends. So a
backward pass may leave them owed: it gives the gradients of inputs at once, and those of weights are worked out when
there is nothing better to do. Both are computed as autograd computes them, to the bit, and added up in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from potluck.program.program import Program, inputs_of

Arguments = Sequence[Any]
Gradients = tuple[tuple[torch.Tensor, torch.Tensor], ...]  # weights with their gradients


class Rule(NamedTuple):
    """How the gradient of what an operator gave becomes those of its input and of its weights."""

    place: int  # of the input among the arguments
    weight: int
    bias: int
    features: int  # the axis of the weight that has what comes out
    back: Callable[[torch.Tensor, Arguments], torch.Tensor]
    late: Callable[[torch.Tensor, Arguments], Gradients]


class Owed(NamedTuple):
    """The weight gradients of one operator for one micro-batch."""

    rule: Rule
    gradient: torch.Tensor  # of what the operator gave
    arguments: Arguments


def can_wait(program: Program, positions: Sequence[int]) -> frozenset[int]:
    """Positions of nodes with trainable weights of their own.

    A weight that several nodes use is left alone: autograd adds up its gradients before it adds them to others.
    """
    trainable = {s.id for s in program.sources if s.kind == "parameter" and s.trainable}
    uses = Counter(value for p in positions for value in inputs_of(program.nodes[p]))
    found = set()
    for p in positions:
        node = program.nodes[p]
        values = inputs_of(node)
        own = [v for v in values if v in trainable and uses[v] == 1]
        if node.op in RULES and not node.no_grad and not node.kwargs and own and len(own) == len(values) - 1:
            found.add(p)
    return frozenset(found)


def owing(rule: Rule, function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator, made to leave its weight gradients owed where it may."""

    def run(owed: list[Owed], *arguments: Any) -> Any:
        x, weight = arguments[rule.place], arguments[rule.weight]
        bias = arguments[rule.bias] if rule.bias < len(arguments) else None
        odd_bias = bias is not None and bias.shape != (weight.shape[rule.features],)  # one that is spread over outputs
        one_sample = weight.dim() > 2 and x.dim() != weight.dim()
        if odd_bias or one_sample or not x.requires_grad or not weight.is_contiguous():
            return function(*arguments)
        return _Owing.apply(x, arguments, function, rule, owed)  # type: ignore[no-untyped-call]

    return run


def pay(owed: Iterable[Owed]) -> None:
    """Adds weight gradients to those of their weights."""
    with torch.no_grad():
        for rule, gradient, arguments in owed:
            for weight, more in rule.late(gradient, arguments):
                if weight.grad is None:
                    weight.grad = more
                else:
                    weight.grad += more


def owed_bytes(owed: Iterable[Owed]) -> int:
    """What is kept alive until it is paid."""
    held = [t for rule, gradient, arguments in owed for t in (gradient, arguments[rule.place])]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values())


class _Owing(torch.autograd.Function):
    """An operator whose backward gives the gradient of its input alone."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, arguments: Arguments, function: Callable[..., Any], rule: Rule, owed: list[Owed]
    ) -> torch.Tensor:
        ctx.rule, ctx.owed = rule, owed
        ctx.arguments = (*arguments[: rule.place], x.detach(), *arguments[rule.place + 1 :])
        y: torch.Tensor = function(*arguments)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient: torch.Tensor = gradients[0]
        ctx.owed.append(Owed(ctx.rule, gradient, ctx.arguments))
        back = ctx.rule.back(gradient, ctx.arguments)
        ctx.arguments = ()
        return back, None, None, None, None


def _convolution(gradient: torch.Tensor, arguments: Arguments, mask: list[bool]) -> Any:
    x, weight = arguments[:2]
    bias = arguments[2] if len(arguments) > 2 else None
    given = list(arguments[3:])
    stride, padding, dilation, groups = given + [1, 0, 1, 1][len(given) :]
    axes = weight.dim() - 2
    return torch.ops.aten.convolution_backward.default(
        gradient, x, weight, None if bias is None else [bias.numel()], _each(stride, axes), _each(padding, axes),
        _each(dilation, axes), False, [0] * axes, groups, mask,
    )  # fmt: skip


def _each(given: int | Sequence[int], axes: int) -> list[int]:
    """One number for every axis."""
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * axes if len(numbers) == 1 else numbers


def _convolution_back(gradient: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    back: torch.Tensor = _convolution(gradient, arguments, [True, False, False])[0]
    return back


def _convolution_late(gradient: torch.Tensor, arguments: Arguments) -> Gradients:
    bias = arguments[2] if len(arguments) > 2 else None
    _, of_weight, of_bias = _convolution(gradient, arguments, [False, True, bias is not None])
    found: Gradients = ((arguments[1], of_weight),)
    return found if bias is None else (*found, (bias, of_bias))


def _linear_back(gradient: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    x, weight = arguments[:2]
    return _rows(gradient).mm(weight).view(x.shape)


def _linear_late(gradient: torch.Tensor, arguments: Arguments) -> Gradients:
    x, weight = arguments[:2]
    bias, rows = arguments[2] if len(arguments) > 2 else None, _rows(gradient)
    found: Gradients = ((weight, rows.t().mm(_rows(x))),)
    return found if bias is None else (*found, (bias, rows.sum(0)))


def _addmm_back(gradient: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    return gradient.mm(arguments[2].t())


def _addmm_late(gradient: torch.Tensor, arguments: Arguments) -> Gradients:
    bias, x, weight = arguments
    return (bias, gradient.sum(0)), (weight, x.t().mm(gradient))


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


CONVOLUTION = Rule(0, 1, 2, 0, _convolution_back, _convolution_late)
RULES: Mapping[str, Rule] = {
    **{f"aten.conv{n}d.default": CONVOLUTION for n in (1, 2, 3)},
    "aten.linear.default": Rule(0, 1, 2, 0, _linear_back, _linear_late),
    "aten.addmm.default": Rule(1, 2, 0, 1, _addmm_back, _addmm_late),
}

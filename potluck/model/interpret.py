"""Runs nodes of a program as a function of (weights, buffers, inputs); nothing is generated or executed as source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from potluck.errors import InputError
from potluck.model.operators import OURS, look_up
from potluck.model.program import (
    Arg,
    Here,
    Items,
    Named,
    Node,
    NonFinite,
    Program,
    Ref,
    Size,
    Tensor,
    evaluate_size,
    inputs_of,
)
from potluck.model.randomness import Draw, keep_mask

Registers = list[Any]


class Context(NamedTuple):
    """What a run of nodes needs beside values: the rows at hand and where in training it happens."""

    rows: int
    draw: Draw
    device: torch.device


class _Fill(NamedTuple):
    position: int
    value: int


class _Instruction(NamedTuple):
    function: Callable[..., Any]
    ours: bool
    arguments: list[Any]
    fills: tuple[_Fill, ...]
    nested: tuple[tuple[int, list[Any], tuple[_Fill, ...]], ...]
    keywords: dict[str, Any]
    keyword_fills: tuple[tuple[str, int], ...]
    outputs: tuple[int, ...]
    several: bool
    no_grad: bool
    frees: tuple[int, ...]


class Code:
    """Some nodes of a program, ready to run. Values not in `keep` are dropped after their last use."""

    def __init__(self, program: Program, positions: Sequence[int], keep: Iterable[int], device: torch.device) -> None:
        self._nodes = [program.nodes[p] for p in positions]
        self._values = program.values
        self._device = device
        self._keep = set(keep)
        self._bound: dict[int, list[_Instruction]] = {}
        self.size = max(program.values, default=-1) + 1

    def run(self, registers: Registers, context: Context) -> None:
        """Fills the registers of every node's outputs."""
        for ins in self._instructions(context.rows):
            arguments = ins.arguments.copy()
            for position, value in ins.fills:
                arguments[position] = registers[value]
            for position, template, fills in ins.nested:
                filled = template.copy()
                for at, value in fills:
                    filled[at] = registers[value]
                arguments[position] = filled
            keywords = ins.keywords
            if ins.keyword_fills:
                keywords = {**keywords, **{k: registers[v] for k, v in ins.keyword_fills}}
            if ins.ours:
                arguments.insert(0, context)
            if ins.no_grad:
                with torch.no_grad():
                    result = ins.function(*arguments, **keywords)
            else:
                result = ins.function(*arguments, **keywords)
            if ins.several:
                for output, part in zip(ins.outputs, result, strict=False):
                    if output >= 0:
                        registers[output] = part
            else:
                registers[ins.outputs[0]] = result
            for value in ins.frees:
                registers[value] = None

    def _instructions(self, rows: int) -> list[_Instruction]:
        bound = self._bound.get(rows)
        if bound is None:
            if len(self._bound) > 16:
                self._bound.clear()
            bound = self._bound[rows] = self._bind(rows)
        return bound

    def _bind(self, rows: int) -> list[_Instruction]:
        last: dict[int, int] = {}
        for i, node in enumerate(self._nodes):
            for value in (*inputs_of(node), *node.outputs):
                last[value] = i
        frees: list[list[int]] = [[] for _ in self._nodes]
        for value, i in last.items():
            if value not in self._keep and value >= 0:
                frees[i].append(value)
        return [self._instruction(n, rows, tuple(f)) for n, f in zip(self._nodes, frees, strict=True)]

    def _instruction(self, node: Node, rows: int, frees: tuple[int, ...]) -> _Instruction:
        ours = node.op in OURS
        function = _our_function(node, self._values) if ours else look_up(node.op)
        arguments: list[Any] = []
        fills: list[_Fill] = []
        nested: list[tuple[int, list[Any], tuple[_Fill, ...]]] = []
        for position, arg in enumerate(node.args):
            if isinstance(arg, Ref):
                arguments.append(None)
                fills.append(_Fill(position, arg.id))
            elif isinstance(arg, Items) and any(isinstance(a, Ref) for a in arg.items):
                template = [None if isinstance(a, Ref) else self._constant(a, rows) for a in arg.items]
                arguments.append(None)
                inner = tuple(_Fill(i, a.id) for i, a in enumerate(arg.items) if isinstance(a, Ref))
                nested.append((position, template, inner))
            else:
                arguments.append(self._constant(arg, rows))
        keywords = {k: self._constant(a, rows) for k, a in node.kwargs.items() if not isinstance(a, Ref)}
        keyword_fills = tuple((k, a.id) for k, a in node.kwargs.items() if isinstance(a, Ref))
        return _Instruction(
            function, ours, arguments, tuple(fills), tuple(nested), keywords, keyword_fills, node.outputs,
            node.tuple_output, node.no_grad, frees,
        )  # fmt: skip

    def _constant(self, arg: Arg, rows: int) -> Any:
        match arg:
            case Size(tree=tree):
                return evaluate_size(tree, rows)
            case Items(items=items):
                return [self._constant(a, rows) for a in items]
            case NonFinite(text=text):
                return float(text)
            case Here():
                return self._device
            case Named(kind=kind, name=name):
                return torch_constant(kind, name)
            case Ref():
                raise InputError("program: a reference where a constant was expected; the program is damaged")
            case _:
                return arg


def torch_constant(kind: str, name: str) -> Any:
    """The dtype, layout or memory format of a name; refuses anything else under that name."""
    found = getattr(torch, name, None)
    if not isinstance(found, {"dtype": torch.dtype, "layout": torch.layout}.get(kind, torch.memory_format)):
        raise InputError(f"program: {name!r} is not a {kind} of torch")
    return found


def _our_function(node: Node, values: dict[int, Tensor]) -> Callable[..., Any]:
    """One of our own operators, told where the batch axis of its operand is."""
    operand = values[inputs_of(node)[0]]
    if node.op == "potluck.batch_norm":
        return _batch_norm
    if node.op == "potluck.dropout":
        return lambda context, x, p, feature, salt: _dropout(context, x, p, feature, salt, operand.batch_axis)
    return lambda context, *args: _attention_dropout(context, *args, axis=operand.batch_axis)


def _batch_norm(
    context: Context, x: torch.Tensor, weight: Any, bias: Any, eps: float, dtype: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalised x with its batch mean and unbiased variance: momentum 1 makes the running buffers just these."""
    kind = torch_constant("dtype", dtype)
    mean = torch.zeros(x.shape[1], dtype=kind, device=x.device)
    variance = torch.zeros(x.shape[1], dtype=kind, device=x.device)
    y = torch.ops.aten.batch_norm.default(x, weight, bias, mean, variance, True, 1.0, eps, True)
    return y, mean, variance


def _mask(context: Context, shape: Sequence[int], p: float, salt: int, axis: int | None, x: torch.Tensor) -> torch.Tensor:
    """A keep-mask scaled by 1 / (1 − p), with the rows of `axis` drawn by their place in the micro-batch."""
    if p >= 1.0:
        return torch.zeros(tuple(shape), dtype=x.dtype, device=x.device)
    if axis is None:  # no rows to tell apart: one draw for all
        draw = context.draw._replace(row_start=0)
        mask = keep_mask((1, *shape), 1, p, salt, draw, x.device)[0]
    else:
        moved = (shape[axis], *(s for i, s in enumerate(shape) if i != axis))
        mask = keep_mask(tuple(moved), context.rows, p, salt, context.draw, x.device).movedim(0, axis)
    return mask.to(x.dtype).mul_(1.0 / (1.0 - p))


def _dropout(
    context: Context, x: torch.Tensor, p: float, feature: bool, salt: int, axis: int | None
) -> torch.Tensor:
    shape = list(x.shape)
    if feature:  # whole channels: one draw per (sample, channel)
        shape[2:] = [1] * (len(shape) - 2)
    return x * _mask(context, shape, p, salt, axis, x)


def _attention_dropout(
    context: Context, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, p: float,
    causal: bool, scale: float | None, gqa: bool, salt: int, *, axis: int | None,
) -> torch.Tensor:  # fmt: skip
    """Scaled dot-product attention written out, so that its mask is drawn by row."""
    if gqa:
        k = k.repeat_interleave(q.size(-3) // k.size(-3), -3)
        v = v.repeat_interleave(q.size(-3) // v.size(-3), -3)
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.size(-1)) if scale is None else scale)
    if causal:
        keep = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(keep.logical_not(), float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return (weights * _mask(context, weights.shape, p, salt, axis, weights)) @ v

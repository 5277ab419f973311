"""Runs nodes of a program as a function of (weights, buffers, inputs); nothing is generated or executed as source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from potluck.compute.dense import DENSE, dense
from potluck.compute.execution.execution import Registers
from potluck.compute.kernels import is_product, is_quick, order, quicker
from potluck.compute.late_weights import RULES, Owed, can_wait, owing, pay
from potluck.compute.layers import layer
from potluck.compute.our_operators import Context, our_function, torch_constant
from potluck.compute.stage_optimizer import StageOptimizer
from potluck.errors import InputError
from potluck.program.operators import OURS, allowed
from potluck.program.program import (
    Arg,
    Here,
    Items,
    Named,
    Node,
    NonFinite,
    Program,
    Ref,
    Size,
    evaluate_size,
    inputs_of,
    refs,
)

# The same without a copy where there needs to be none; a model's own code never saw memory orders that we choose.
_IN_ANY_ORDER = {
    "aten.view.default": "aten.reshape.default", "aten._unsafe_view.default": "aten.reshape.default",
    "aten.view_as.default": "aten.reshape_as.default",
}  # fmt: skip


class _Slot(NamedTuple):
    """A place in an argument that a register fills."""

    value: int


class _Instruction(NamedTuple):
    function: Callable[..., Any]
    ours: bool
    owing: Callable[..., Any] | None  # the same, with its weight gradients left owed
    order: torch.memory_format | None  # of the first argument in memory; then the result has its channels last
    arguments: list[Any]
    fills: tuple[tuple[int, int], ...]  # position, value
    nested: tuple[tuple[int, list[Any]], ...]  # position, list with slots
    keywords: dict[str, Any]
    keyword_fills: tuple[tuple[str, Any], ...]
    outputs: tuple[int, ...]
    several: bool
    no_grad: bool
    frees: tuple[int, ...]


class Interpreter:
    """Runs node after node; autograd finds the way back. Values not in `keep` are dropped after their last use."""

    def __init__(self, program: Program, positions: Sequence[int], keep: Iterable[int], device: torch.device) -> None:
        self._nodes = [program.nodes[p] for p in positions]
        self._can_wait = {id(program.nodes[p]) for p in can_wait(program, positions)}
        self._values = program.values
        self._device, self._quick = device, is_quick(program)
        self._keep = set(keep)
        self._bound: dict[int, list[_Instruction]] = {}

    @property
    def can_wait(self) -> bool:
        """Whether there are weight gradients that can be put off."""
        return bool(self._can_wait)

    def forward(self, registers: Registers, context: Context) -> None:
        """Fills the registers of every node's outputs."""
        for ins in self._instructions(context.rows):
            arguments = ins.arguments.copy()
            for position, value in ins.fills:
                arguments[position] = registers[value]
            for position, template in ins.nested:
                arguments[position] = _filled(template, registers)
            keywords = ins.keywords
            if ins.keyword_fills:
                keywords = {**keywords, **{k: _filled(a, registers) for k, a in ins.keyword_fills}}
            if ins.order is not None:
                arguments[0] = arguments[0].contiguous(memory_format=ins.order)
            if ins.ours:
                arguments.insert(0, context)
            if ins.owing is not None and context.owed is not None:
                result = ins.owing(context.owed, *arguments)
            elif ins.no_grad:
                with torch.no_grad():
                    result = ins.function(*arguments, **keywords)
            else:
                result = ins.function(*arguments, **keywords)
            if ins.order is not None:
                result = result.contiguous(memory_format=torch.channels_last)
            if ins.several:
                for output, part in zip(ins.outputs, result, strict=False):
                    if output >= 0:
                        registers[output] = part
            else:
                registers[ins.outputs[0]] = result
            for value in ins.frees:
                registers[value] = None

    def backward(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Adds to the gradients of all that the roots came from."""
        torch.autograd.backward(roots, gradients)

    def weights(self, owed: Iterable[Owed]) -> None:
        """Adds the weight gradients that a backward pass has left owed."""
        pay(owed)

    def step(self, optimizer: StageOptimizer, lr_scale: float) -> None:
        """Changes the parameters by their gradients."""
        optimizer.step(lr_scale)

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
        arguments = [self._argument(a, rows) for a in node.args]
        keywords = {k: self._argument(a, rows) for k, a in node.kwargs.items()}
        function = our_function(node, self._values) if ours else look_up(node.op)
        rule = RULES.get(node.op)
        if self._quick and is_product(node, self._values, rows, self._device):
            function, rule = dense, DENSE
        elif self._quick and (found := layer(node, self._values, rows, self._device)) is not None:
            function, rule = found
        elif self._quick:
            arguments = quicker(node, arguments, self._values, rows, self._device)
        return _Instruction(
            function=function,
            ours=ours,
            owing=owing(rule, function) if rule is not None and id(node) in self._can_wait else None,
            order=order(node, self._values, rows, self._device) if self._quick else None,
            arguments=arguments,
            fills=tuple((i, a.value) for i, a in enumerate(arguments) if isinstance(a, _Slot)),
            nested=tuple((i, arguments[i]) for i, a in enumerate(node.args) if isinstance(a, Items) and refs(a)),
            keywords=keywords,
            keyword_fills=tuple((k, keywords[k]) for k, a in node.kwargs.items() if refs(a)),
            outputs=node.outputs,
            several=node.tuple_output,
            no_grad=node.no_grad,
            frees=frees,
        )

    def _argument(self, arg: Arg, rows: int) -> Any:
        match arg:
            case Ref(id=value):
                return _Slot(value)
            case Size(tree=tree):
                return evaluate_size(tree, rows)
            case Items(items=items):
                return [self._argument(a, rows) for a in items]
            case NonFinite(text=text):
                return float(text)
            case Here():
                return self._device
            case Named(kind=kind, name=name):
                return torch_constant(kind, name)
            case _:
                return arg


def _filled(template: Any, registers: Registers) -> Any:
    if isinstance(template, _Slot):
        return registers[template.value]
    if isinstance(template, list):
        return [_filled(item, registers) for item in template]
    return template


def look_up(op: str) -> Callable[..., Any]:
    """The torch operator of a name on the list; refuses every other name, and any that changes an argument."""
    if not allowed(op) or op in OURS:
        raise InputError(f"program: operator {op} is not on the list of tensor operators; refused")
    _, name, overload = _IN_ANY_ORDER.get(op, op).split(".")
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if found is None:
        raise InputError(f"program: this device's torch {torch.__version__} has no operator {op}; update torch here")
    if any(a.alias_info is not None and a.alias_info.is_write for a in found._schema.arguments):
        raise InputError(f"program: operator {op} changes its arguments; refused")
    return found  # type: ignore[no-any-return]

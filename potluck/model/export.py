"""nn.Module → program: traces the model with torch.export and writes it down without in-place operators."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.export import Dim
from torch.export.graph_signature import InputKind

from potluck.errors import ModelError
from potluck.model.operators import OURS, RANDOM, allowed, base_name
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
    Source,
    Tensor,
    Update,
    inputs_of,
    pack_bytes,
)
from potluck.model.rewrite import Aliases, rewrite_call
from potluck.model.source_lines import explain_export_failure, module_of, source_of
from potluck.model.symbols import size_tree

LABEL = "label"

_DROPPED = ("_assert", "sym_constrain", "_guards_fn", "_sym_check", "_check")


def call_model(model: nn.Module, feeds: Mapping[str, torch.Tensor]) -> Any:
    """The model's outputs: one tensor positionally, input0, input1, … positionally, other names as keywords."""
    names = [n for n in feeds if n != LABEL]
    if names == ["input"]:
        return model(feeds["input"])
    if names == [f"input{i}" for i in range(len(names))]:
        return model(*(feeds[n] for n in names))
    return model(**{n: feeds[n] for n in names})


class TrainForm(nn.Module):
    """Model and loss as one function of the feeds."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, feeds: dict[str, torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = self.loss(call_model(self.model, feeds), feeds[LABEL])
        return result


class EvalForm(nn.Module):
    """The model's outputs, or what `reduce` makes of them and the labels, as a flat tuple."""

    def __init__(self, model: nn.Module, reduce: Any = None) -> None:
        super().__init__()
        self.model = model
        self.reduce = reduce

    def forward(self, feeds: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        outputs = call_model(self.model, feeds)
        if self.reduce is not None:
            outputs = self.reduce(outputs, feeds[LABEL])
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def export_program(form: nn.Module, feeds: dict[str, torch.Tensor], mode: Literal["train", "eval"]) -> Program:
    """The flat program of a form in its current training mode."""
    dynamic = {name: {0: Dim.DYNAMIC} for name in feeds}
    try:
        exported = torch.export.export(form, (feeds,), dynamic_shapes=(dynamic,), strict=False)
    except Exception as error:
        raise explain_export_failure(error) from None
    return _Writer(exported, form, feeds, mode).write()


class _Writer:
    """Walks the exported graph once, node by node, and writes the program."""

    def __init__(self, exported: Any, form: nn.Module, feeds: dict[str, torch.Tensor], mode: str) -> None:
        self.exported, self.form, self.feeds, self.mode = exported, form, feeds, mode
        self.sources: list[Source] = []
        self.nodes: list[Node] = []
        self.values: dict[int, Tensor] = {}
        self.updates: list[Update] = []
        self.aliases = Aliases()
        self.env: dict[fx.Node, Any] = {}  # fx node → Arg, or a tuple of Args for several results
        self.salt = 0
        self.buffers: dict[int, str] = {}
        self.no_grad = False

    def write(self) -> Program:
        graph = self.exported.graph_module.graph
        self.aliases.number(graph)
        self._placeholders(graph)
        output = self._body(self.exported.graph_module, graph)
        results = tuple(a.id for a in output if isinstance(a, Ref))
        self._count_updates(results)
        return Program(
            mode="train" if self.mode == "train" else "eval",
            sources=tuple(self.sources),
            nodes=tuple(self.nodes),
            values=self.values,
            outputs=tuple(self.aliases.current(i) for i in results),
            updates=tuple(self.updates),
        )

    def _placeholders(self, graph: fx.Graph) -> None:
        signature = {s.arg.name: s for s in self.exported.graph_signature.input_specs}
        constants, state = self.exported.constants, self.exported.state_dict
        names = iter(self.feeds)
        for node in graph.nodes:
            if node.op != "placeholder":
                continue
            spec = signature[node.name]
            value = self._declare(node.meta["val"], node)
            self.env[node] = Ref(value)
            self.aliases.add_root(node)
            name = str(spec.target or "").removeprefix("model.")
            if spec.kind is InputKind.USER_INPUT:
                name = next(names)
                if not any(t == "b" for t in self.values[value].shape[:1]):
                    raise ModelError(
                        f"input {name!r}: the model fixes the batch size at {tuple(node.meta['val'].shape)[0]}; "
                        "it must work for any number of samples: look for a constant batch size in a view or reshape"
                    )
                self.sources.append(Source(kind="input", name=name, id=value))
            elif spec.kind is InputKind.PARAMETER:
                if not str(spec.target).startswith("model."):
                    raise ModelError(f"the loss has a parameter ({spec.target}); move it into the model")
                trainable = dict(self.form.named_parameters(remove_duplicate=False))[spec.target].requires_grad
                self.sources.append(Source(kind="parameter", name=name, id=value, trainable=trainable))
            elif spec.kind is InputKind.BUFFER and spec.persistent and str(spec.target).startswith("model."):
                self.sources.append(Source(kind="buffer", name=name, id=value))
                self.buffers[value] = name
            elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                tensor = constants[spec.target] if spec.target in constants else state[spec.target]
                self.sources.append(Source(kind="constant", name=name, id=value, data=_raw(tensor), persistent=False))
                if spec.kind is InputKind.BUFFER:
                    self.buffers[value] = name
            else:
                raise ModelError(f"the model takes a {spec.kind.name.lower()} argument, which cannot be exported")

    def _declare(self, val: Any, node: fx.Node) -> int:
        number = len(self.values)
        where = source_of(node)
        shape = tuple(size_tree(s, where) for s in val.shape)
        self.values[number] = Tensor(shape=shape, dtype=str(val.dtype).removeprefix("torch."))
        return number

    def _body(self, module: Any, graph: fx.Graph) -> list[Any]:
        for node in graph.nodes:
            if node.op == "output":
                return [self._arg(a) for a in node.args[0]]
            if node.op == "call_function":
                self._call(module, node)
            elif node.op == "call_module" and not node.name.startswith("_guards"):
                raise ModelError(f"{source_of(node)}: torch.export left a call to {node.target}; it cannot be written")
        return []

    def _call(self, module: Any, node: fx.Node) -> None:
        target, val = node.target, node.meta.get("val")
        if target is operator.getitem:
            self.env[node] = self.env[node.args[0]][node.args[1]]  # type: ignore[index]
            self.aliases.join(node, node.args[0])
            return
        if isinstance(val, torch.SymInt | torch.SymFloat | int | float) and not isinstance(val, bool):
            self.env[node] = Size(size_tree(val, source_of(node)))
            return
        name = str(target)
        if any(word in name for word in _DROPPED) or isinstance(val, torch.SymBool | bool):
            return
        if isinstance(target, torch._ops.HigherOrderOperator):
            self._inline(module, node)
            return
        rewrite_call(self, node, name)

    def _inline(self, module: Any, node: fx.Node) -> None:
        """The body of a `no_grad` region, in place; no other higher-order operator is known."""
        if node.target is not torch.ops.higher_order.wrap_with_set_grad_enabled:
            raise ModelError(
                f"{source_of(node)}: {node.target} is control flow over tensors, which a program cannot say; "
                "write it with torch.where, or hand-cut the model around it"
            )
        enabled, body, *arguments = node.args
        inner = getattr(module, body.target)  # type: ignore[union-attr]
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        self.aliases.number(inner.graph, after=node)
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self.env[placeholder] = self.env[argument]  # type: ignore[index]
            self.aliases.join(placeholder, argument)
        before, self.no_grad = self.no_grad, self.no_grad or not enabled
        self.env[node] = tuple(self._body(inner, inner.graph))
        self.no_grad = before
        self.aliases.add_root(node)

    def _arg(self, value: Any) -> Arg:
        """An argument as data."""
        if isinstance(value, fx.Node):
            found = self.env[value]
            return Ref(self.aliases.current(found.id)) if isinstance(found, Ref) else found  # type: ignore[no-any-return]
        if isinstance(value, list | tuple):
            return Items(tuple(self._arg(v) for v in value))
        if isinstance(value, torch.device):
            return Here()
        for kind, cls in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
            if isinstance(value, cls):
                return Named(kind, str(value).removeprefix("torch."))  # type: ignore[arg-type]
        if isinstance(value, float) and not float("-inf") < value < float("inf"):
            return NonFinite(repr(value))
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ModelError(f"the model passes a {type(value).__name__} to an operator; it cannot be written down")

    def emit(self, node: fx.Node, op: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], val: Any) -> Any:
        """Appends a node; returns what it gives: a Ref, or a tuple of Refs."""
        name = base_name(op)
        if op not in OURS and (name in RANDOM or name.rstrip("_") in RANDOM):
            raise ModelError(
                f"{source_of(node)}: {name} draws random numbers, which only dropout may do in a model; "
                "draw them in the dataset, or use dropout"
            )
        if not allowed(op):
            raise ModelError(f"{source_of(node)}: operator {op} is not one a program may use; write it with others")
        several = isinstance(val, list | tuple)
        results = tuple(self._declare(v, node) if v is not None else -1 for v in (val if several else (val,)))
        self.nodes.append(
            Node(
                op=op,
                args=args,
                kwargs=kwargs,
                outputs=results,
                source=source_of(node),
                module=module_of(node),
                no_grad=self.no_grad,
                tuple_output=several,
            )
        )
        return tuple(Ref(i) for i in results) if several else Ref(results[0])

    def _count_updates(self, results: tuple[int, ...]) -> None:
        """Buffers the forward replaced, as explicit updates."""
        known = {u.buffer for u in self.updates}
        made = {o: n for n in self.nodes for o in n.outputs}
        for first, name in self.buffers.items():
            last = self.aliases.current(first)
            if last == first or name in known:
                continue
            node = made[last]
            reads = sum(first in inputs_of(n) for n in self.nodes) + sum(last in inputs_of(n) for n in self.nodes)
            counts = node.op == "aten.add.Tensor" and node.args[0] == Ref(first) and reads == 1 and last not in results
            if counts and isinstance(node.args[1], int | float):
                self.nodes.remove(node)
                self.updates.append(Update(buffer=name, kind="count", amount=float(node.args[1])))
            else:
                self.updates.append(Update(buffer=name, kind="value", value=last))


def _raw(tensor: torch.Tensor) -> str:
    return pack_bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

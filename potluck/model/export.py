"""nn.Module → program: traces the model with torch.export and writes it down without in-place operators."""

from __future__ import annotations

import operator
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from potluck.errors import ModelError
from potluck.model.aliases import Aliases, graph_node
from potluck.model.rewrite import rewrite_call
from potluck.model.source_lines import module_of, source_of
from potluck.model.symbols import Symbols
from potluck.model.trace import trace
from potluck.model.updates import find_updates
from potluck.program.operators import allowed
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
    Source,
    Tensor,
    Update,
    pack_bytes,
)

_DROPPED = ("_assert", "sym_constrain", "_guards_fn", "_sym_check", "_check")


def export_program(form: nn.Module, feeds: dict[str, torch.Tensor], mode: Literal["train", "eval"]) -> Program:
    """The flat program of a form in its current training mode."""
    exported, assigned = trace(form, feeds)
    return Writer(exported, form, feeds, assigned).write(mode)


class Writer:
    """Walks the exported graph once, node by node, and writes the program."""

    def __init__(self, exported: Any, form: nn.Module, feeds: dict[str, torch.Tensor], assigned: set[str]) -> None:
        self.exported, self.feeds, self.assigned = exported, feeds, assigned
        self.parameters = dict(form.named_parameters(remove_duplicate=False))
        self.sources: list[Source] = []
        self.nodes: list[Node] = []
        self.values: dict[int, Tensor] = {}
        self.updates: list[Update] = []
        self.aliases = Aliases()
        self.symbols = Symbols()
        self.env: dict[fx.Node, Any] = {}  # fx node → Arg, or a tuple of Args for several results
        self.buffers: dict[int, str] = {}
        self.state: list[fx.Node] = []  # placeholders that outlive a forward: parameters, buffers, constants
        self.inlined: dict[fx.Node, list[Any]] = {}
        self.salt = 0
        self.no_grad = False

    def write(self, mode: Literal["train", "eval"]) -> Program:
        graph = self.exported.graph_module.graph
        self.aliases.number(graph)
        self._placeholders(graph)
        results = self._outputs(self._body(self.exported.graph_module, graph), mode)
        find_updates(self, results)
        return Program(
            mode=mode,
            sources=tuple(self.sources),
            nodes=tuple(self.nodes),
            values=self.values,
            outputs=results,
            updates=tuple(self.updates),
        )

    def _outputs(self, given: list[Any], mode: str) -> tuple[int, ...]:
        results = tuple(self.aliases.current(a.id) for a in given if isinstance(a, Ref))
        if mode == "train":
            loss = self.values[results[0]] if len(results) == len(given) == 1 else None
            if loss is None or loss.shape or not loss.dtype.startswith(("float", "bfloat")):
                what = "no single tensor" if loss is None else f"a {loss.dtype} tensor of shape {list(loss.shape)}"
                raise ModelError(f"the loss gives {what}; it must give one number, the mean over the samples")
        return results

    def _placeholders(self, graph: fx.Graph) -> None:
        signature = {s.arg.name: s for s in self.exported.graph_signature.input_specs}
        names = iter(self.feeds)
        holders = [n for n in graph.nodes if n.op == "placeholder"]
        for node in holders:  # first the names of the batch size, which shapes are written with
            spec = signature[node.name]
            if spec.kind is InputKind.USER_INPUT:
                spec.target = next(names)
                if not self.symbols.add_batch(node.meta["val"].shape[0]):
                    raise ModelError(
                        f"input {spec.target!r}: the model fixes the batch size at {node.meta['val'].shape[0]}; "
                        "it must work for any number of samples: look for a constant batch size in a view or reshape"
                    )
        for node in holders:
            value = self._declare(node.meta["val"], node)
            self.env[node] = Ref(value)
            self.aliases.add(node)
            self.sources.append(self._source(signature[node.name], value))
            if self.sources[-1].kind != "input":
                self.state.append(node)

    def _source(self, spec: Any, value: int) -> Source:
        target = str(spec.target)
        name = target.removeprefix("model.")
        if spec.kind is InputKind.USER_INPUT:
            return Source(kind="input", name=target, id=value)
        if spec.kind is InputKind.PARAMETER:
            if not target.startswith("model."):
                raise ModelError(f"the loss has a parameter ({target}); move it into the model")
            trainable = self.parameters[target].requires_grad
            return Source(kind="parameter", name=name, id=value, trainable=trainable)
        if spec.kind not in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise ModelError(f"the model takes a {spec.kind.name.lower()} argument, which cannot be exported")
        if spec.kind is InputKind.BUFFER:
            of_model = target.startswith("model.")
            self.buffers[value] = name if of_model else f"{target} of the loss"
            if spec.persistent and of_model:
                return Source(kind="buffer", name=name, id=value)
        constants, state = self.exported.constants, self.exported.state_dict
        tensor = constants[target] if target in constants else state[target]
        self._check_constant(target, tensor)
        return Source(kind="constant", name=f"constant:{target}", id=value, data=_raw(tensor), persistent=False)

    def _check_constant(self, name: str, tensor: torch.Tensor) -> None:
        known = name.removeprefix("model.")
        if tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
            raise ModelError(
                f"buffer {known!r} is on the meta device and is not saved with the weights, so its values are lost; "
                "make the model within potluck.model.empty.empty_weights(), which leaves buffers as they are"
            )
        if tensor.requires_grad:
            raise ModelError(
                f"the loss or the model uses a trainable tensor ({known}) that is not a parameter of the model; "
                "reach it through the model (model.layer.weight), or detach it"
            )
        if name in self.assigned:
            raise ModelError(
                f"{known}: the forward pass keeps this tensor for the next one; make it a buffer "
                f"(self.register_buffer({known.rpartition('.')[2]!r}, …))"
            )

    def _declare(self, val: Any, node: fx.Node, dtype: Any = None) -> int:
        number = len(self.values)
        where = source_of(node)
        shape = tuple(self.symbols.tree(s, where) for s in val.shape)
        self.values[number] = Tensor(shape=shape, dtype=str(dtype or val.dtype).removeprefix("torch."))
        return number

    def _body(self, module: Any, graph: fx.Graph) -> list[Any]:
        for node in graph.nodes:
            if node.op == "output":
                return [self.argument(a) for a in node.args[0]]
            if node.op == "call_function":
                self._call(module, node)
            elif node.op == "call_module" and not node.name.startswith("_guards"):
                raise ModelError(f"{source_of(node)}: torch.export left a call to {node.target}; it cannot be written")
        return []

    def _call(self, module: Any, node: fx.Node) -> None:
        target, val, name = node.target, node.meta.get("val"), str(node.target)
        if target is operator.getitem:
            self._pick(node)
        elif isinstance(val, torch.SymInt | torch.SymFloat | int | float) and not isinstance(val, bool):
            self.env[node] = Size(self.symbols.tree(val, source_of(node)))
        elif any(word in name for word in _DROPPED) or isinstance(val, torch.SymBool | bool):
            pass
        elif isinstance(target, torch._ops.HigherOrderOperator):
            self._inline(module, node)
        else:
            rewrite_call(self, node, name)

    def _pick(self, node: fx.Node) -> None:
        several, index = graph_node(node.args[0]), node.args[1]
        self.env[node] = self.env[several][index]
        inner = self.inlined[several][index] if several in self.inlined else None  # type: ignore[index]
        if isinstance(inner, fx.Node):
            self.aliases.add_same(node, inner)
        else:
            self.aliases.add(node, (several,))

    def _inline(self, module: Any, node: fx.Node) -> None:
        """The body of a `no_grad` region, in place; no other higher-order operator is known."""
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            enabled, body, *arguments = node.args
            no_grad = not enabled
        elif node.target is torch.ops.higher_order.wrap_with_autocast and not node.args[2]:
            _, _, _, _, body, *arguments = node.args  # switched off, as some models do around delicate sums
            no_grad = self.no_grad
        else:
            what, instead = "control flow over tensors", "write it with torch.where, or hand-cut the model around it"
            if node.target is torch.ops.higher_order.wrap_with_autocast:
                what, instead = "autocast", "give the model the element type it is to compute in, e.g. model.bfloat16()"
            raise ModelError(f"{_place(node)}: {what} is nothing a program can say; {instead}")
        inner = getattr(module, str(body.target if isinstance(body, fx.Node) else body))
        self.aliases.number(inner.graph, after=node)
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self.env[placeholder] = self.env[graph_node(argument)]
            self.aliases.add_same(placeholder, graph_node(argument))
        before, self.no_grad = self.no_grad, no_grad
        self.env[node] = tuple(self._body(inner, inner.graph))
        self.no_grad = before
        output = next(n for n in inner.graph.nodes if n.op == "output")
        self.inlined[node] = list(output.args[0])
        self.aliases.add(node)

    def argument(self, value: Any) -> Arg:
        if isinstance(value, fx.Node):
            found = self.env.get(value)
            if found is None or isinstance(found, tuple):
                raise ModelError(f"{source_of(value)}: {value.target} is used as a value; it cannot be written down")
            return Ref(self.aliases.current(found.id)) if isinstance(found, Ref) else found
        if isinstance(value, list | tuple):
            return Items(tuple(self.argument(v) for v in value))
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return Size(self.symbols.tree(value, "the model"))
        if isinstance(value, torch.device):
            return Here()
        if isinstance(value, torch.dtype):
            return Named("dtype", str(value).removeprefix("torch."))
        if isinstance(value, torch.layout):
            return Named("layout", str(value).removeprefix("torch."))
        if isinstance(value, torch.memory_format):
            return Named("memory_format", str(value).removeprefix("torch."))
        if isinstance(value, float) and not float("-inf") < value < float("inf"):
            return NonFinite(repr(value))
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ModelError(f"the model passes a {type(value).__name__} to an operator; it cannot be written down")

    def emit(
        self, node: fx.Node, op: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], val: Any, dtype: Any = None
    ) -> Any:
        """Appends a node; returns what it gives: a Ref, or a tuple of Refs. `dtype`, where it is not that of `val`."""
        if not allowed(op) or val is None:
            raise ModelError(f"{source_of(node)}: operator {op} is not one a program may use; write it with others")
        several = isinstance(val, list | tuple)
        results = tuple(self._declare(v, node, dtype) if v is not None else -1 for v in (val if several else (val,)))
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


def _place(node: fx.Node) -> str:
    """Where a region is: its own node knows no line, its first operator does."""
    body = next((a for a in node.args if isinstance(a, fx.Node) and a.op == "get_attr"), None)
    inner = getattr(node.graph.owning_module, str(body.target)) if body is not None else None
    lines = [source_of(n) for n in inner.graph.nodes if n.op == "call_function"] if inner is not None else []
    return lines[0] if lines else source_of(node)


def _raw(tensor: torch.Tensor) -> str:
    return pack_bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

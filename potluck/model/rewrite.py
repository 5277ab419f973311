"""From what torch.export gives to what a program may say: no in-place operators, statistics and masks explicit.

The exported graph is not functional: `relu_`, `add_` and the running statistics of BatchNorm hide in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from potluck.errors import ModelError
from potluck.model.program import Update
from potluck.model.source_lines import source_of

if TYPE_CHECKING:
    from potluck.model.export import _Writer


class Aliases:
    """Which graph nodes share memory, and the newest value of each value changed in place."""

    def __init__(self) -> None:
        self._root: dict[fx.Node, fx.Node] = {}
        self._newer: dict[int, int] = {}
        self._order: dict[fx.Node, tuple[int, ...]] = {}

    def number(self, graph: fx.Graph, after: fx.Node | None = None) -> None:
        """Remembers the order of a graph's nodes; an inlined body comes at its call."""
        prefix = self._order[after] if after is not None else ()
        for i, node in enumerate(graph.nodes):
            self._order[node] = (*prefix, i)

    def add_root(self, node: fx.Node) -> None:
        self._root[node] = node

    def join(self, node: fx.Node, other: Any) -> None:
        self._root[node] = self._root.get(other, node)

    def current(self, value: int) -> int:
        """The value that holds what this one became."""
        while value in self._newer:
            value = self._newer[value]
        return value

    def replace(self, old: int, new: int) -> None:
        if old != new:
            self._newer[old] = new

    def used_later(self, changed: fx.Node, at: fx.Node) -> fx.Node | None:
        """Another name of the memory `at` changes that is read afterwards: then the change cannot be undone."""
        root = self._root.get(changed, changed)
        moment = self._order[at]
        for node, its_root in self._root.items():
            if its_root is not root or node is changed or self._same_value(node, changed):
                continue
            if any(self._order.get(user, ()) > moment for user in node.users):
                return node
        return None

    def _same_value(self, node: fx.Node, changed: fx.Node) -> bool:
        """Whether the node only stands for the changed value: the result of an earlier in-place call on it."""
        target = node.target
        while isinstance(target, torch._ops.OpOverload) and _is_inplace(target):
            node = node.args[0]  # type: ignore[assignment]
            if node is changed:
                return True
            target = node.target
        target = changed.target
        while isinstance(target, torch._ops.OpOverload) and _is_inplace(target):
            changed = changed.args[0]  # type: ignore[assignment]
            if node is changed:
                return True
            target = changed.target
        return False


def _is_inplace(op: torch._ops.OpOverload) -> bool:
    first = op._schema.arguments[:1]
    return bool(first and first[0].alias_info is not None and first[0].alias_info.is_write)


def rewrite_call(writer: _Writer, node: fx.Node, name: str) -> None:
    """Writes one operator call, in the form a program has for it."""
    base = name.split(".")[1] if name.count(".") == 2 else name
    if base in ("dropout", "dropout_", "feature_dropout", "feature_dropout_", "native_dropout"):
        _dropout(writer, node, base)
    elif base == "batch_norm" and node.args[5]:
        _batch_norm(writer, node)
    elif base == "scaled_dot_product_attention" and _argument(node, 4, "dropout_p", 0.0):
        _attention_dropout(writer, node)
    elif base in ("lstm", "gru", "rnn_tanh", "rnn_relu") and node.args[5] and node.args[6]:
        raise ModelError(
            f"{source_of(node)}: dropout inside {base} cannot be drawn row by row; set its dropout to 0 and put "
            "nn.Dropout between single-layer modules"
        )
    elif isinstance(node.target, torch._ops.OpOverload) and _is_inplace(node.target):
        _in_place(writer, node)
    else:
        _plain(writer, node, name)


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _plain(writer: _Writer, node: fx.Node, name: str) -> None:
    args = tuple(writer._arg(a) for a in node.args)
    kwargs = {k: writer._arg(a) for k, a in node.kwargs.items()}
    writer.env[node] = writer.emit(node, name, args, kwargs, node.meta["val"])
    target = node.target
    views = isinstance(target, torch._ops.OpOverload) and any(r.alias_info is not None for r in target._schema.returns)
    if views and isinstance(node.args[0], fx.Node):
        writer.aliases.join(node, node.args[0])
    else:
        writer.aliases.add_root(node)


def _in_place(writer: _Writer, node: fx.Node) -> None:
    """x.op_(…) → a new value that replaces x, refused where another view of x would show the change."""
    changed = node.args[0]
    other = writer.aliases.used_later(changed, node)  # type: ignore[arg-type]
    if other is not None:
        raise ModelError(
            f"{source_of(node)}: this changes a tensor in place while a view of it is used later; "
            "write it out of place (x = x + y instead of x += y)"
        )
    old = writer.env[changed]  # type: ignore[index]
    value = writer.aliases.current(old.id)
    if any(s.kind == "parameter" and s.id == value for s in writer.sources):
        raise ModelError(f"{source_of(node)}: the forward pass changes a parameter in place; it must not")
    _, name, overload = str(node.target).split(".")
    if name == "detach_":
        op = "aten.detach.default"
    else:
        op = f"aten.{name.removesuffix('_')}.{overload}"
    args = tuple(writer._arg(a) for a in node.args)
    kwargs = {k: writer._arg(a) for k, a in node.kwargs.items()}
    result = writer.emit(node, op, args, kwargs, node.meta["val"])
    writer.aliases.replace(value, result.id)
    writer.env[node] = result
    writer.aliases.join(node, changed)


def _identity(writer: _Writer, node: fx.Node, source: Any) -> None:
    writer.env[node] = writer.env[source]
    writer.aliases.join(node, source)


def _dropout(writer: _Writer, node: fx.Node, base: str) -> None:
    x, p, train = node.args[0], float(node.args[1]), bool(_argument(node, 2, "train", True))  # type: ignore[arg-type]
    if not train or p == 0.0:
        _identity(writer, node, x)
        return
    writer.salt += 1
    val = node.meta["val"]
    args = (writer._arg(x), p, base.startswith("feature"), writer.salt)
    single = val[0] if isinstance(val, list | tuple) else val
    result = writer.emit(node, "potluck.dropout", args, {}, single)
    if base.endswith("_"):
        writer.aliases.replace(writer.aliases.current(writer.env[x].id), result.id)  # type: ignore[index]
    writer.env[node] = (result, None) if isinstance(val, list | tuple) else result
    writer.aliases.add_root(node)


def _batch_norm(writer: _Writer, node: fx.Node) -> None:
    """Training BatchNorm gives its statistics as values; they are folded into the running buffers at commit."""
    x, weight, bias, mean, variance, _, momentum, eps, _ = node.args
    out = node.meta["val"]
    if mean is None:
        _plain(writer, node, str(node.target))
        return
    mean_val, variance_val = mean.meta["val"], variance.meta["val"]  # type: ignore[union-attr]
    args = (writer._arg(x), writer._arg(weight), writer._arg(bias), eps, str(mean_val.dtype).removeprefix("torch."))
    y, m, v = writer.emit(node, "potluck.batch_norm", args, {}, (out, mean_val, variance_val))  # type: ignore[arg-type]
    for buffer, kind, value in ((mean, "mean", m), (variance, "variance", v)):
        name = writer.buffers.get(writer.env[buffer].id)  # type: ignore[index]
        if name is None:
            raise ModelError(f"{source_of(node)}: BatchNorm's running statistics are computed; make them plain buffers")
        writer.updates.append(Update(buffer=name, kind=kind, value=value.id, amount=float(momentum)))  # type: ignore[arg-type]
    writer.env[node] = y
    writer.aliases.add_root(node)


def _attention_dropout(writer: _Writer, node: fx.Node) -> None:
    writer.salt += 1
    q, k, v = (writer._arg(a) for a in node.args[:3])
    mask = writer._arg(_argument(node, 3, "attn_mask", None))
    p = float(_argument(node, 4, "dropout_p", 0.0))
    causal = bool(_argument(node, 5, "is_causal", False))
    scale = writer._arg(node.kwargs.get("scale"))
    gqa = bool(node.kwargs.get("enable_gqa", False))
    args = (q, k, v, mask, p, causal, scale, gqa, writer.salt)
    writer.env[node] = writer.emit(node, "potluck.attention_dropout", args, {}, node.meta["val"])
    writer.aliases.add_root(node)

"""From what torch.export gives to what a program may say: no in-place operators, statistics and masks explicit.

The exported graph is not functional: `relu_`, `add_` and the running statistics of BatchNorm hide in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx

from potluck.errors import ModelError
from potluck.model.aliases import aliased_arguments, graph_node, is_in_place
from potluck.model.source_lines import source_of
from potluck.program.operators import RANDOM, base_name
from potluck.program.program import Ref, Update

if TYPE_CHECKING:
    from potluck.model.export import Writer

_DROPOUTS = ("dropout", "dropout_", "feature_dropout", "feature_dropout_", "native_dropout")
_SCATTER = {"aten.select.int": "aten.select_scatter.default", "aten.slice.Tensor": "aten.slice_scatter.default"}
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def rewrite_call(writer: Writer, node: fx.Node, name: str) -> None:
    """Writes one operator call, in the form a program has for it."""
    if not isinstance(node.target, torch._ops.OpOverload):
        raise ModelError(f"{source_of(node)}: {name} is not an operator of torch; write it with those")
    base = base_name(name)
    if base.rstrip("_") in RANDOM:
        raise ModelError(
            f"{source_of(node)}: {base} draws random numbers, which only dropout may do in a model; "
            "draw them in the dataset, or use dropout"
        )
    if base in _DROPOUTS:
        _dropout(writer, node, base)
    elif base == "batch_norm" and _given(node, "training"):
        _batch_norm(writer, node)
    elif base == "instance_norm" and _given(node, "use_input_stats") and _given(node, "running_mean") is not None:
        raise ModelError(
            f"{source_of(node)}: InstanceNorm with track_running_stats changes buffers inside its operator; "
            "set track_running_stats=False"
        )
    elif base == "scaled_dot_product_attention" and _given(node, "dropout_p"):
        _attention_dropout(writer, node)
    elif base in _RECURRENT and _given(node, "dropout") and _given(node, "train"):
        raise ModelError(
            f"{source_of(node)}: dropout inside {base} cannot be drawn row by row; set its dropout to 0 and put "
            "nn.Dropout between single-layer modules"
        )
    elif base in ("squeeze", "squeeze_"):
        _squeeze(writer, node)
    elif base in _CONVOLUTIONS and name.endswith(".padding"):
        _padded_by_name(writer, node, name)
    elif is_in_place(node.target):
        _in_place(writer, node)
    else:
        _plain(writer, node, name)


def _given(node: fx.Node, name: str) -> Any:
    """The argument of that name, however it was passed."""
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            default = argument.default_value if argument.has_default_value() else None
            return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)
    return None


def _plain(writer: Writer, node: fx.Node, name: str) -> None:
    args = tuple(writer.argument(a) for a in node.args)
    kwargs = {k: writer.argument(a) for k, a in node.kwargs.items()}
    writer.env[node] = writer.emit(node, name, args, kwargs, node.meta["val"])
    writer.aliases.add(node, aliased_arguments(node))


def _padded_by_name(writer: Writer, node: fx.Node, name: str) -> None:
    """A convolution padded "same" or "valid" → by numbers, as torch does it; by name where both sides differ."""
    points, given = _given(node, "weight").meta["val"].shape[2:], _given(node, "dilation")
    spaces = ([given] if isinstance(given, int) else list(given)) * len(points)
    same = _given(node, "padding") == "same"
    wide = [space * (size - 1) if same else 0 for space, size in zip(spaces, points, strict=False)]
    if any(more % 2 for more in wide):
        _plain(writer, node, name)
        return
    first = [_given(node, key) for key in ("input", "weight", "bias", "stride")]
    args = (*first, [more // 2 for more in wide], given, _given(node, "groups"))
    written = tuple(writer.argument(a) for a in args)
    writer.env[node] = writer.emit(node, name.replace(".padding", ".default"), written, {}, node.meta["val"])
    writer.aliases.add(node, aliased_arguments(node))


def _identity(writer: Writer, node: fx.Node, source: Any) -> None:
    writer.env[node] = writer.env[source]
    writer.aliases.add_same(node, source)


def _check_change(writer: Writer, node: fx.Node, views: list[fx.Node]) -> None:
    """Refuses a change in place that a rewrite cannot show to everybody who would see it.

    `views`: the changed node, what it is a part of, and so on, up to the whole.
    """
    changed, whole = views[0], writer.aliases.base(views[-1])
    root = writer.aliases.root(changed)
    lasting = {s: writer.env[s].id for s in writer.state if writer.aliases.root(s) is root}
    if any(s.kind == "parameter" and s.id in lasting.values() for s in writer.sources):
        raise ModelError(f"{source_of(node)}: the forward pass changes a parameter in place; it must not")
    if writer.aliases.used_later(changed, views, node) is not None:
        raise ModelError(
            f"{source_of(node)}: this changes a tensor in place while a view of it is used later; "
            "write it out of place (x = x + y instead of x += y)"
        )
    if lasting and lasting.get(whole) not in writer.buffers:
        raise ModelError(
            f"{source_of(node)}: this changes a tensor that outlives the forward pass and is not a buffer, or a view "
            "of one; make it a buffer and write the whole of it (self.buffer.copy_(…))"
        )


def _views(writer: Writer, changed: fx.Node) -> list[fx.Node]:
    """The changed node and what it is a slice of, step by step, as far as slices can be written back."""
    views = [changed]
    while str((made := writer.aliases.base(views[-1])).target) in _SCATTER:
        views.append(graph_node(made.args[0]))
    return views


def _replace(writer: Writer, node: fx.Node, views: list[fx.Node], result: Ref) -> None:
    """From here on the changed node has the new value, and so has everything it is a slice of."""
    for view, whole in zip(views, [*views[1:], None], strict=True):
        writer.aliases.replace(writer.aliases.current(writer.env[view].id), result.id)
        if whole is None:
            return
        made = writer.aliases.base(view)
        position = tuple(writer.argument(a) for a in made.args[1:])
        old = writer.argument(whole)
        val = whole.meta["val"]
        result = writer.emit(node, _SCATTER[str(made.target)], (old, result, *position), {}, val)


def _in_place(writer: Writer, node: fx.Node) -> None:
    """x.op_(…) → a new value that replaces x, refused where another view of x would show the change."""
    changed = graph_node(node.args[0])
    views = _views(writer, changed)
    _check_change(writer, node, views)
    val = node.meta["val"]
    function = _out_of_place(node)
    args = tuple(writer.argument(a) for a in node.args)
    kwargs = {k: writer.argument(a) for k, a in node.kwargs.items()}
    if str(function) == "aten.copy.default":  # torch has no gradient for it
        result = _copied(writer, node)
    else:
        plain = _dtype(node, function)
        result = writer.emit(node, str(function), args, kwargs, val, plain)
        if plain not in (None, val.dtype):  # x.add_(y) keeps the type of x; x + y need not
            result = writer.emit(node, "aten.to.dtype", (result, writer.argument(val.dtype)), {}, val)
    _replace(writer, node, views, result)
    writer.env[node] = result
    writer.aliases.add(node, (changed,))


def _copied(writer: Writer, node: fx.Node) -> Ref:
    """What x.copy_(y) makes of x: y, in the shape and type of x."""
    source, val = graph_node(node.args[1]), node.meta["val"]
    shape = writer.argument(list(val.shape))
    result = writer.emit(
        node, "aten.expand.default", (writer.argument(source), shape), {}, val, source.meta["val"].dtype
    )
    copy = {"dtype": writer.argument(val.dtype), "memory_format": writer.argument(torch.contiguous_format)}
    made: Ref = writer.emit(node, "aten._to_copy.default", (result,), copy, val)
    return made


def _out_of_place(node: fx.Node) -> Any:
    """The operator that gives a new tensor where this one changes its first argument."""
    schema = node.target._schema  # type: ignore[union-attr]
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    packet = getattr(torch.ops.aten, base_name(str(node.target)).removesuffix("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        found = getattr(packet, overload)
        if [(a.name, str(a.type)) for a in found._schema.arguments] == wanted:
            return found
    raise ModelError(f"{source_of(node)}: operator {node.target} is not one a program may use; write it out of place")


def _dtype(node: fx.Node, function: Any) -> torch.dtype | None:
    """The element type the operator would give, asked of torch; None if it cannot say."""
    args = fx.node.map_aggregate(node.args, _stand_in)
    kwargs = fx.node.map_aggregate(node.kwargs, _stand_in)
    try:
        return function(*args, **kwargs).dtype  # type: ignore[no-any-return]
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _stand_in(argument: Any) -> Any:
    """A tensor on the meta device, or a number, in the place of a graph node."""
    val = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    if isinstance(val, torch.Tensor):
        return torch.empty([_stand_in(s) for s in val.shape], dtype=val.dtype, device="meta")
    if isinstance(val, torch.SymInt | torch.SymFloat):
        return val.node.hint
    return val


def _squeeze(writer: Writer, node: fx.Node) -> None:
    """Only axes that always have one entry are squeezed: the batch must stay an axis when it has one row."""
    x = graph_node(node.args[0])
    shape = x.meta["val"].shape
    wanted = _given(node, "dim")
    dims = range(len(shape)) if wanted is None else [wanted] if isinstance(wanted, int) else wanted
    kept = [d for d in dims if isinstance(shape[d], int) and shape[d] == 1]
    if not kept:
        _identity(writer, node, x)
        return
    if is_in_place(node.target):
        _check_change(writer, node, [x])
    args = (writer.argument(x), writer.argument(kept))
    result = writer.emit(node, "aten.squeeze.dims", args, {}, node.meta["val"])
    if is_in_place(node.target):
        _replace(writer, node, [x], result)
    writer.env[node] = result
    writer.aliases.add(node, (x,))


def _dropout(writer: Writer, node: fx.Node, base: str) -> None:
    x, p, train = graph_node(node.args[0]), float(_given(node, "p")), _given(node, "train")
    val = node.meta["val"]
    several = isinstance(val, list | tuple)
    if not train or p == 0.0:
        if several:
            raise ModelError(f"{source_of(node)}: native_dropout without dropout; call torch.nn.functional.dropout")
        _identity(writer, node, x)
        return
    views = _views(writer, x)
    if base.endswith("_"):
        _check_change(writer, node, views)
    writer.salt += 1
    args = (writer.argument(x), p, base.startswith("feature"), writer.salt)
    result = writer.emit(node, "potluck.dropout", args, {}, val[0] if several else val)
    if base.endswith("_"):
        _replace(writer, node, views, result)
        writer.aliases.add(node, (x,))
    else:
        writer.aliases.add(node)
    writer.env[node] = (result, None) if several else result


def _batch_norm(writer: Writer, node: fx.Node) -> None:
    """Training BatchNorm gives its statistics as values; they are folded into the running buffers at commit."""
    mean, variance = _given(node, "running_mean"), _given(node, "running_var")
    if mean is None:
        _plain(writer, node, str(node.target))
        return
    x, weight, bias, eps = (writer.argument(_given(node, n)) for n in ("input", "weight", "bias", "eps"))
    mean_val, variance_val = mean.meta["val"], variance.meta["val"]
    args = (x, weight, bias, eps, str(mean_val.dtype).removeprefix("torch."))
    vals = (node.meta["val"], mean_val, variance_val)
    y, m, v = writer.emit(node, "potluck.batch_norm", args, {}, vals)
    statistics: tuple[tuple[fx.Node, Literal["mean", "variance"], Ref], ...] = (
        (mean, "mean", m),
        (variance, "variance", v),
    )
    for buffer, kind, value in statistics:
        name = writer.buffers.get(writer.env[buffer].id)
        if name is None:
            raise ModelError(f"{source_of(node)}: BatchNorm's running statistics are computed; make them plain buffers")
        momentum = float(_given(node, "momentum"))
        writer.updates.append(Update(buffer=name, kind=kind, value=value.id, amount=momentum))
    writer.env[node] = y
    writer.aliases.add(node)


def _attention_dropout(writer: Writer, node: fx.Node) -> None:
    writer.salt += 1
    q, k, v, mask, scale = (writer.argument(_given(node, n)) for n in ("query", "key", "value", "attn_mask", "scale"))
    p, causal, gqa = float(_given(node, "dropout_p")), _given(node, "is_causal"), _given(node, "enable_gqa")
    args = (q, k, v, mask, p, bool(causal), scale, bool(gqa), writer.salt)
    writer.env[node] = writer.emit(node, "potluck.attention_dropout", args, {}, node.meta["val"])
    writer.aliases.add(node)

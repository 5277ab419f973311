"""The operators a program has beside torch's: dropout drawn by row, and BatchNorm that gives its statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from potluck.compute.late_weights import Owed
from potluck.compute.randomness import Draw, keep_mask
from potluck.errors import InputError
from potluck.program.program import Node, Tensor, inputs_of


class Context(NamedTuple):
    """What a run of nodes needs beside values: the rows at hand and where in training it happens."""

    rows: int
    draw: Draw
    device: torch.device
    owed: list[Owed] | None = None  # where weight gradients may wait


def torch_constant(kind: str, name: str) -> Any:
    """The dtype, layout or memory format of a name; refuses anything else under that name."""
    found = getattr(torch, name, None)
    if not isinstance(found, {"dtype": torch.dtype, "layout": torch.layout}.get(kind, torch.memory_format)):
        raise InputError(f"program: {name!r} is not a {kind} of torch")
    return found


def our_function(node: Node, values: Mapping[int, Tensor]) -> Callable[..., Any]:
    """One of our own operators, told where the batch axis of its operand is."""
    axis = values[inputs_of(node)[0]].batch_axis
    match node.op:
        case "potluck.batch_norm":
            return _batch_norm
        case "potluck.dropout":
            return lambda context, *args: _dropout(context, *args, axis=axis)
        case _:
            return lambda context, *args: _attention_dropout(context, *args, axis=axis)


def _batch_norm(
    context: Context, x: torch.Tensor, weight: Any, bias: Any, eps: float, dtype: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalised x with its batch mean and unbiased variance: momentum 1 makes the running buffers just these."""
    if x.numel() == x.shape[1]:
        raise InputError(
            f"BatchNorm needs more than one value per channel, but a micro-batch gave it the shape {tuple(x.shape)}; "
            "choose a batch size that leaves no micro-batch of one sample"
        )
    kind = torch_constant("dtype", dtype)
    mean = torch.zeros(x.shape[1], dtype=kind, device=x.device)
    variance = torch.zeros(x.shape[1], dtype=kind, device=x.device)
    y = torch.ops.aten.batch_norm.default(x, weight, bias, mean, variance, True, 1.0, eps, True)
    return y, mean, variance


def _mask(
    context: Context, shape: Sequence[int], p: float, salt: int, axis: int | None, x: torch.Tensor
) -> torch.Tensor:
    """A keep-mask scaled by 1 / (1 − p), with the rows of `axis` drawn by their place in the micro-batch."""
    if p >= 1.0:
        return torch.zeros(tuple(shape), dtype=x.dtype, device=x.device)
    if axis is None:  # no rows to tell apart: one draw for all
        draw = context.draw._replace(row_start=0)
        mask = keep_mask((1, *shape), 1, p, salt, draw, x.device)[0]
    else:
        moved = (shape[axis], *(s for i, s in enumerate(shape) if i != axis))
        mask = keep_mask(moved, context.rows, p, salt, context.draw, x.device).movedim(0, axis)
    return mask.to(x.dtype).mul_(1.0 / (1.0 - p))


def _dropout(
    context: Context, x: torch.Tensor, p: float, feature: bool, salt: int, *, axis: int | None
) -> torch.Tensor:
    shape = list(x.shape)
    if feature:  # whole channels: one draw per (sample, channel)
        shape[2:] = [1] * (len(shape) - 2)
        axis = axis if axis is not None and axis < 2 else None
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

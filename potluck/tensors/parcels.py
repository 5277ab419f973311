"""Tensors as the parts of a link message, and back, with the memory order they had.

An operator may choose another kernel for another memory order, and with it other last bits; so a transposed tensor
arrives transposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

from potluck.advice import said
from potluck.compute.our_operators import torch_constant
from potluck.errors import LinkError
from potluck.types import ITEM_BYTES
from potluck.wire.link import Buffer

_MOST_AXES = 64  # of a tensor: torch has no more


class _Head(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]  # in memory order
    order: tuple[int, ...]  # axis of the tensor at each place of memory order


_heads = msgspec.msgpack.Decoder(list[_Head | None])


def pack(tensors: Sequence[torch.Tensor | None]) -> list[Buffer]:
    """The message of some tensors; None stays None. Memory is shared with the tensors where it can be."""
    heads: list[_Head | None] = []
    parts: list[Buffer] = []
    for tensor in tensors:
        if tensor is None:
            heads.append(None)
            continue
        tensor = tensor.detach()
        strides = tensor.stride()
        # Of two axes with one stride, one has a single place: last, where it is in the order of its elements.
        order = tuple(sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], tensor.shape[axis] == 1)))
        laid = tensor.permute(order).contiguous()
        if laid.device.type != "cpu":
            laid = laid.cpu()
        heads.append(_Head(str(laid.dtype).removeprefix("torch."), tuple(laid.shape), order))
        parts.append(laid.reshape(-1).view(torch.uint8).numpy().data)
    return [msgspec.msgpack.encode(heads), *parts]


def unpack(parts: Sequence[memoryview], device: torch.device, *, copy: bool = True) -> list[torch.Tensor | None]:
    """The tensors of a message, on a device.

    Copied by default: the carrier aligns to 8 bytes only, and with the alignment BLAS may change its last bits. What
    is only added and scaled, element by element, needs no copy.
    """
    try:
        heads = _heads.decode(parts[0])
    except (msgspec.DecodeError, IndexError) as error:
        raise LinkError(f"a damaged message arrived ({error}); the link is broken") from None
    tensors: list[torch.Tensor | None] = []
    rest = iter(parts[1:])
    for head in heads:
        tensors.append(None if head is None else _tensor(head, next(rest, memoryview(b"")), device, copy))
    return tensors


def _tensor(head: _Head, raw: memoryview, device: torch.device, copy: bool) -> torch.Tensor:
    axes = len(head.shape)
    if axes > _MOST_AXES or any(size < 0 for size in head.shape) or sorted(head.order) != list(range(axes)):
        raise LinkError(f"a message says shape {head.shape[:_MOST_AXES]}, which no tensor has; the link is broken")
    count = math.prod(head.shape)
    if head.dtype not in ITEM_BYTES:  # torch has others too, some of which would crash here
        raise LinkError(f"a message holds elements of type {head.dtype[:40]!r}; the link is broken")
    dtype: torch.dtype = torch_constant("dtype", head.dtype)
    if len(raw) != count * dtype.itemsize:
        raise LinkError(f"a message says {head.shape} {head.dtype} but carries {len(raw)} bytes; the link is broken")
    try:
        return _laid_out(head, raw, dtype, count, copy).to(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        what = said(error)
        raise LinkError(f"a message says {head.shape} {head.dtype} ({what}); the link is broken") from error


def _laid_out(head: _Head, raw: memoryview, dtype: torch.dtype, count: int, copy: bool) -> torch.Tensor:
    """The tensor, with the memory order it had."""
    flat = torch.frombuffer(raw, dtype=dtype) if count else torch.empty(0, dtype=dtype)
    if copy:
        flat = flat.clone()
    back = [0] * len(head.order)
    for place, axis in enumerate(head.order):
        back[axis] = place
    return flat.view(head.shape).permute(back)

"""Tensors of a stage as a link message and back, by the codec of the edge. What is no floating-point number stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from potluck.advice import described, one_line
from potluck.compress.codec import FLOATS, Codec
from potluck.compress.codec_registry import bytes_of
from potluck.errors import CodecError, LinkError
from potluck.tensors.parcels import pack, unpack
from potluck.types import RAW
from potluck.wire.link import Buffer

_MOST_PARTS = 255  # of a tensor: its count is one byte of the message
_SAME = "repair it, and have the same on every device"


class Like(NamedTuple):
    """What the receiver of a tensor knows of it before it comes."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def pack_coded(tensors: Sequence[torch.Tensor | None], codec: Codec) -> list[Buffer]:
    """The message of some tensors; None stays None."""
    if codec.name == RAW:
        return pack(tensors)
    coded = [_encoded(tensor, codec) for tensor in tensors]
    return [bytes(len(parts) for parts in coded), *pack([part for parts in coded for part in parts])]


def _encoded(tensor: torch.Tensor | None, codec: Codec) -> Sequence[torch.Tensor | None]:
    if tensor is None or not _is_coded(tensor.dtype):
        return [tensor]
    parts = _made(codec, tensor.detach())
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    size, most = sum(part.nbytes for part in parts), bytes_of(codec, shape, dtype)
    if size > most:
        why = f"made {size} bytes of a {shape} {dtype} tensor, where its bytes says {most}; correct its bytes"
        raise CodecError(f"codec {codec.name!r} {why}")
    return parts


def _made(codec: Codec, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The parts that a codec makes of a tensor, if parts they are."""
    try:
        parts = codec.encode(tensor)
    except Exception as error:
        raise CodecError(f"codec {codec.name!r} cannot encode a tensor ({one_line(error)}); repair it") from error
    if not isinstance(parts, list | tuple) or not all(isinstance(part, torch.Tensor) for part in parts):
        made = described(parts)
        if isinstance(parts, list | tuple):
            made += f" with {described(next(part for part in parts if not isinstance(part, torch.Tensor)))}"
        raise CodecError(f"codec {codec.name!r} made {made} of a tensor; let encode give a list of tensors")
    if not 0 < len(parts) <= _MOST_PARTS:
        raise CodecError(f"codec {codec.name!r} made {len(parts)} parts of a tensor; make it 1 to {_MOST_PARTS}")
    return parts


def unpack_coded(
    message: Sequence[memoryview], codec: Codec, likes: Sequence[Like], device: torch.device
) -> list[torch.Tensor | None]:
    """The tensors of a message, on a device."""
    if codec.name == RAW:
        return unpack(message, device)
    counts = bytes(message[0]) if message else b""
    parts = unpack(message[1:], device)
    if len(counts) != len(likes) or sum(counts) != len(parts) or not all(counts):
        raise LinkError("a message does not hold the parts it says; the link is broken")
    rest = iter(parts)
    return [_decoded(islice(rest, count), codec, like) for count, like in zip(counts, likes, strict=True)]


def _decoded(parts: Iterator[torch.Tensor | None], codec: Codec, like: Like) -> torch.Tensor | None:
    found = [part for part in parts if part is not None]
    if not found or not _is_coded(like.dtype):
        return found[0] if found else None
    try:
        tensor = codec.decode(found, like.shape, like.dtype)
    except Exception as error:
        what = f"cannot decode a message ({one_line(error)})"
        raise CodecError(f"codec {codec.name!r} {what}; {_SAME}") from error
    if not isinstance(tensor, torch.Tensor):
        raise CodecError(f"codec {codec.name!r} decoded a message to {described(tensor)}; let decode give a tensor")
    if tuple(tensor.shape) != like.shape or tensor.dtype != like.dtype:
        got = f"{tuple(tensor.shape)} {tensor.dtype} instead of {like.shape} {like.dtype}"
        raise CodecError(f"codec {codec.name!r} decoded a message to {got}; {_SAME}")
    return tensor


def _is_coded(dtype: torch.dtype) -> bool:
    return str(dtype).removeprefix("torch.") in FLOATS

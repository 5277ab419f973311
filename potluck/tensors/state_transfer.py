"""Moves the tensors of a stage over a link, under their names: in pieces, so that other messages get in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import msgspec
import torch

from potluck.compute.runner import StageState
from potluck.errors import LinkError
from potluck.tensors.digest import digest
from potluck.tensors.parcels import pack, unpack
from potluck.types import Held
from potluck.wire.link import Buffer, Link, Tag

_CHUNK_BYTES = 4 * 2**20  # of tensors that are copied at a time: so much more memory a copy takes
_PIECE_BYTES = 4 * 2**20  # of a message: its cost is little against its bytes, and others get in between
_MOST_BYTES = 64 * 2**30  # of one chunk: a tensor that is larger does not fit a device
_SMALL_PIECE_BYTES = 512 * 1024  # where what trains goes first
_PIECE_S = 0.25  # of a copy at its pace: a message costs half a millisecond of CPU time, whatever its size
_PARTS = ("parameters", "buffers", "optimizer")
_Named = tuple[str, str, torch.Tensor]  # part of the state, name, tensor


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    names: tuple[tuple[str, str], ...]  # (part of the state, name)
    sizes: tuple[int, ...]  # bytes of each of the tensors' buffers
    digest: int  # of all of them
    last: bool


def state_tag(round: int, held: Held | None, number: int) -> Tag:
    """How a message of a state is asked for: of a state that a device holds, or of what it reports (None)."""
    which, term = (0, 0) if held is None else (held.stage + 2, held.term)
    return Tag("state", round, which, number, term)


def send_state(
    link: Link, peer: str, round: int, state: StageState, timeout_s: float, held: Held | None = None, *,
    fixed: bool = False, bytes_s: float | None = None, term: int | None = None,
) -> None:  # fmt: skip
    """Sends the whole state, if asked to no faster than `bytes_s`, while the term (by default the one in force) lasts.

    Unless nothing changes it (`fixed`), it is copied first, so that training may go on at once.
    """
    pause, term = threading.Event(), link.term if term is None else term
    number = 0
    piece_bytes = _PIECE_BYTES
    if bytes_s is not None:
        piece_bytes = min(_PIECE_BYTES, max(_SMALL_PIECE_BYTES, int(bytes_s * _PIECE_S)))
    chunks = list(_chunks(state))
    for place, chunk in enumerate(chunks):
        heads, *buffers = pack([t if fixed else t.detach().clone() for _, _, t in chunk])
        views = [memoryview(b).cast("B") for b in buffers]
        names, sizes = tuple((p, n) for p, n, _ in chunk), tuple(len(v) for v in views)
        head = _Chunk(names, sizes, digest(views), place == len(chunks) - 1)
        messages: list[Sequence[Buffer]] = [[msgspec.msgpack.encode(head), heads], *_pieces(views, piece_bytes)]
        for message in messages:
            link.send(peer, state_tag(round, held, number), message, timeout_s, term)
            number += 1
            if bytes_s is not None:
                pause.wait(sum(len(part) for part in message) / bytes_s)


def receive_state(
    link: Link, peer: str, round: int, timeout_s: float, held: Held | None = None, *, term: int | None = None
) -> StageState:
    """The state a peer sends, on the CPU, in memory of its own."""
    found: dict[str, dict[str, torch.Tensor]] = {part: {} for part in _PARTS}
    number, last, term = 0, False, link.term if term is None else term
    while not last:
        message = link.receive(peer, state_tag(round, held, number), timeout_s, term)
        number += 1
        try:
            head_bytes, heads = message
            head = msgspec.msgpack.decode(head_bytes, type=_Chunk)
        except (msgspec.DecodeError, ValueError) as error:
            raise LinkError(f"damaged state arrived from {peer} ({error}); the link is broken") from None
        if min(head.sizes, default=0) < 0 or sum(head.sizes) > _MOST_BYTES:
            raise LinkError(f"damaged state arrived from {peer} ({sum(head.sizes)} bytes); the link is broken")
        buffers = [torch.empty(size, dtype=torch.uint8).numpy().data for size in head.sizes]
        rest = [buffer for buffer in buffers if len(buffer)]
        while rest:
            for piece in link.receive(peer, state_tag(round, held, number), timeout_s, term):
                if not rest or not 0 < len(piece) <= len(rest[0]):
                    raise LinkError(f"damaged state arrived from {peer}; the link is broken")
                rest[0][: len(piece)] = piece
                rest[0] = rest[0][len(piece) :]
                if not len(rest[0]):
                    del rest[0]
            number += 1
        if digest(buffers) != head.digest:
            raise LinkError(f"the state that arrived from {peer} is not what was sent; the link is broken")
        tensors = unpack([heads, *buffers], torch.device("cpu"), copy=False)  # memory of its own
        if len(tensors) != len(head.names):
            raise LinkError(f"damaged state arrived from {peer}; the link is broken")
        for (part, name), tensor in zip(head.names, tensors, strict=True):
            if tensor is None or part not in found:
                raise LinkError(f"damaged state arrived from {peer}; the link is broken")
            found[part][name] = tensor
        last = head.last
    return StageState(**found)


def _chunks(state: StageState) -> Iterator[list[_Named]]:
    """Tensors of a few megabytes at a time; at least one list, possibly empty."""
    chunk: list[_Named] = []
    size = 0
    for part in _PARTS:
        for name, tensor in getattr(state, part).items():
            if size > _CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
            chunk.append((part, name, tensor))
            size += tensor.nbytes
    yield chunk


def _pieces(buffers: Sequence[memoryview], most_bytes: int) -> Iterator[list[memoryview]]:
    """The buffers in order, cut where they are longer than a piece, several to a message where they are short."""
    message: list[memoryview] = []
    size = 0
    for buffer in buffers:
        for start in range(0, len(buffer), most_bytes):
            piece = buffer[start : start + most_bytes]
            if size + len(piece) > most_bytes and message:
                yield message
                message, size = [], 0
            message.append(piece)
            size += len(piece)
    if message:
        yield message

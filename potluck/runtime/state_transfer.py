"""Moves the tensors of a stage over a link, in messages of a few megabytes, under their names."""

from __future__ import annotations

import msgspec
import torch

from potluck.errors import LinkError
from potluck.runtime.parcels import pack, unpack
from potluck.runtime.stage import StageState
from potluck.types import Held
from potluck.wire.link import Link, Tag

_CHUNK_BYTES = 4 * 2**20
_PARTS = ("parameters", "buffers", "optimizer")


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    names: tuple[tuple[str, str], ...]  # (part of the state, name)
    last: bool


def state_tag(round: int, held: Held | None, chunk: int) -> Tag:
    """How a piece of a state is asked for: of a state that a device holds, or of what it reports (None)."""
    which, term = (0, 0) if held is None else (held.stage + 2, held.term)
    return Tag("state", round, which, chunk, term)


def send_state(
    link: Link, peer: str, round: int, state: StageState, timeout_s: float, held: Held | None = None, *,
    fixed: bool = False,
) -> None:  # fmt: skip
    """Sends the whole state; unless nothing changes it, it is copied first, so that training may go on at once."""
    entries = [(part, name, t) for part in _PARTS for name, t in getattr(state, part).items()]
    chunks: list[list[tuple[str, str, torch.Tensor]]] = [[]]
    size = 0
    for entry in entries:
        if size > _CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(entry)
        size += entry[2].nbytes
    for i, chunk in enumerate(chunks):
        head = _Chunk(tuple((p, n) for p, n, _ in chunk), i == len(chunks) - 1)
        message = [msgspec.msgpack.encode(head), *pack([t if fixed else t.detach().clone() for _, _, t in chunk])]
        link.send(peer, state_tag(round, held, i), message, timeout_s)


def receive_state(link: Link, peer: str, round: int, timeout_s: float, held: Held | None = None) -> StageState:
    """The state a peer sends, on the CPU, in memory of its own."""
    found: dict[str, dict[str, torch.Tensor]] = {part: {} for part in _PARTS}
    i, last = 0, False
    while not last:
        head_bytes, *parts = link.receive(peer, state_tag(round, held, i), timeout_s)
        try:
            head = msgspec.msgpack.decode(head_bytes, type=_Chunk)
        except msgspec.DecodeError as error:
            raise LinkError(f"damaged state arrived from {peer} ({error}); the link is broken") from None
        for (part, name), tensor in zip(head.names, unpack(parts, torch.device("cpu")), strict=True):
            if tensor is None or part not in found:
                raise LinkError(f"damaged state arrived from {peer}; the link is broken")
            found[part][name] = tensor
        i, last = i + 1, head.last
    return StageState(**found)

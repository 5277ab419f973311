"""One vector over a link, in pieces, with a few words before it: what workers push and what they pull."""

from __future__ import annotations

import msgspec
import torch

from potluck.errors import LinkError
from potluck.tensors.digest import digest
from potluck.wire.link import Link, Tag

_PIECE_BYTES = 1 << 20  # so that other messages get in between


class _Head(msgspec.Struct, frozen=True, array_like=True):
    words: bytes
    size_bytes: int
    digest: int


def send_vector(
    link: Link, peer: str, kind: str, number: int, words: bytes, vector: torch.Tensor | None, timeout_s: float
) -> None:
    """Sends words and a vector, which must not change any more; None goes without."""
    raw = memoryview(b"") if vector is None else vector.contiguous().view(torch.uint8).numpy().data
    head = _Head(words, len(raw), digest([raw]))
    link.send(peer, Tag(kind, number), [msgspec.msgpack.encode(head)], timeout_s)
    for place, start in enumerate(range(0, len(raw), _PIECE_BYTES), start=1):
        link.send(peer, Tag(kind, number, place), [raw[start : start + _PIECE_BYTES]], timeout_s)


def receive_vector(
    link: Link, peer: str, kind: str, number: int, dtype: torch.dtype, size: int, timeout_s: float,
    rest_s: float | None = None,
) -> tuple[bytes, torch.Tensor | None]:  # fmt: skip
    """The words and the vector of so many elements that a peer sends; after the words the rest may take `rest_s`."""
    [first] = link.receive(peer, Tag(kind, number), timeout_s)
    try:
        head = msgspec.msgpack.decode(first, type=_Head)
    except msgspec.MsgspecError as error:
        raise LinkError(f"a damaged message arrived from {peer} ({error}); the link is broken") from None
    if head.size_bytes not in (0, size * dtype.itemsize):
        raise LinkError(f"{head.size_bytes} bytes arrived from {peer}, not a vector of {size}; the link is broken")
    if not head.size_bytes:
        return head.words, None
    vector = torch.empty(size, dtype=dtype)
    raw = vector.view(torch.uint8).numpy().data
    for place, start in enumerate(range(0, len(raw), _PIECE_BYTES), start=1):
        [piece] = link.receive(peer, Tag(kind, number, place), timeout_s if rest_s is None else rest_s)
        if len(piece) != min(_PIECE_BYTES, len(raw) - start):
            raise LinkError(f"a damaged vector arrived from {peer}; the link is broken")
        raw[start : start + len(piece)] = piece
    if digest([raw]) != head.digest:
        raise LinkError(f"the vector that arrived from {peer} is not what was sent; the link is broken")
    return head.words, vector

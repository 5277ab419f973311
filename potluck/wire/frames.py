"""Headers of the frames on a link: protocol version, term, sequence and tag, as msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from potluck.wire.link import Buffer, Tag

PROTOCOL_VERSION = 1  # one more whenever a header of before cannot be read any more
MAX_HEADER_BYTES = 64 * 1024  # a header has some hundred: what is longer is none


class MessageHeader(msgspec.Struct, frozen=True, array_like=True, tag="message"):
    """Goes before the parts of a message. The sequence counts the messages to one peer in one term."""

    version: int
    term: int
    sequence: int
    tag: Tag
    part_bytes: tuple[int, ...]


class CreditHeader(msgspec.Struct, frozen=True, array_like=True, tag="credit"):
    """Tells a sender how many of its bytes were consumed."""

    version: int
    term: int
    consumed_bytes: int


class GoodbyeHeader(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """Nothing more comes from this side in this term."""

    version: int
    term: int


Header: TypeAlias = MessageHeader | CreditHeader | GoodbyeHeader

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)


def encode_header(header: Header) -> bytes:
    return _encoder.encode(header)


def decode_header(data: Buffer) -> Header | None:
    """The header in these bytes; None when they are not one of this protocol version."""
    if len(data) > MAX_HEADER_BYTES:
        return None
    try:
        header = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return header if header.version == PROTOCOL_VERSION else None


def byte_views(parts: Sequence[Buffer]) -> list[memoryview]:
    """The parts as flat views of bytes, without a copy. A part that is not contiguous is a TypeError."""
    views = []
    for part in parts:
        view = memoryview(part)
        # A view with a zero in its shape cannot be cast.
        views.append(view.cast("B") if view.nbytes else memoryview(b""))
    return views

"""The codecs that this process knows, by name."""

from __future__ import annotations

from potluck.compress.codec import FLOATS, Codec
from potluck.compress.raw import Raw
from potluck.errors import InputError
from potluck.types import RAW

_PARTS = ("name", "exact", "bytes", "seconds", "encode", "decode")
_RAW = Raw()
_known: dict[str, Codec] = {RAW: _RAW}


def register(codec: Codec) -> None:
    """Makes a codec known, once and under one name: two that differ would make two numbers of one message."""
    if missing := [part for part in _PARTS if not hasattr(codec, part)]:
        of = ascii(getattr(codec, "name", type(codec).__name__))
        raise InputError(f"codec {of}: it has no {' and no '.join(missing)}; see docs/extending.md")
    if isinstance(codec, type):
        raise InputError(f"codec {codec.name!r}: the class itself is given; register one of it: {codec.__name__}()")
    if _known.get(codec.name, codec) is not codec:
        raise InputError(f"codec {codec.name!r}: there is one already; give yours another name")
    _known[codec.name] = codec


def codec_named(name: str) -> Codec:
    if name not in _known:
        raise InputError(f"codec {name!r}: {unknown_codec()}")
    return _known[name]


def unknown_codec() -> str:
    """What to do about a name that nobody has registered on this machine."""
    return f"not known here; use one of {', '.join(_known)}, or name the module that has it in POTLUCK_EXTENSIONS"


def is_known(name: str) -> bool:
    return name in _known


def wire_bytes(name: str, shape: tuple[int, ...], dtype: str) -> int:
    """What a tensor weighs on the wire; what is no floating-point number travels raw."""
    return (codec_named(name) if dtype in FLOATS else _RAW).bytes(shape, dtype)

"""The codecs that this process knows, by name."""

from __future__ import annotations

import math

from potluck.advice import one_line
from potluck.compress.codec import FLOATS, Codec
from potluck.compress.raw import Raw
from potluck.errors import InputError
from potluck.types import RAW, DeviceProfile

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
    return bytes_of(codec_named(name) if dtype in FLOATS else _RAW, shape, dtype)


def bytes_of(codec: Codec, shape: tuple[int, ...], dtype: str) -> int:
    """What a codec says that a tensor weighs on the wire."""
    try:
        found: object = codec.bytes(shape, dtype)
    except Exception as error:
        why = f"bytes failed for {shape} {dtype} ({one_line(error)}); repair it"
        raise InputError(f"codec {codec.name!r}: {why}") from error
    if not isinstance(found, int) or found < 0:
        why = f"bytes gave {ascii(found)[:80]} for {shape} {dtype}; let it give a whole number"
        raise InputError(f"codec {codec.name!r}: {why}")
    return found


def seconds_of(codec: Codec, device: DeviceProfile) -> float:
    """What a codec says that a byte of a tensor costs a device, encoding or decoding."""
    try:
        found: object = codec.seconds(device)
    except Exception as error:
        raise InputError(f"codec {codec.name!r}: seconds failed ({one_line(error)}); repair it") from error
    if not isinstance(found, float | int) or not 0 <= found < math.inf:
        why = f"seconds gave {ascii(found)[:80]}; let it give a number of seconds, 0 or more"
        raise InputError(f"codec {codec.name!r}: {why}")
    return found

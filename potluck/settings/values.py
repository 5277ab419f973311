"""Readers: each takes the text of a flag or variable, or a TOML value, and gives what it means, or an InputError."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, TypeVar

from potluck import units
from potluck.advice import did_you_mean, said
from potluck.errors import InputError
from potluck.settings.address import Ports, plain_network, port_range, split_address
from potluck.types import DeviceSpec

MAX_FILE_BYTES = 1 << 20  # a kilobyte for each device of the largest fleet
_MOST_BITS = 256  # of a whole number that anybody means

Reader = Callable[[object], Any]
V = TypeVar("V")
T = TypeVar("T")


def read_toml(path: Path, kind: str, page: str) -> dict[str, Any]:
    """What is in a TOML file; an InputError says of which kind it should be, and which page describes it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InputError(f"{path}: more than {MAX_FILE_BYTES} bytes; give the path of a {kind} file")
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a {kind} file") from None
    except (ValueError, RecursionError) as error:  # of the decoder, also for a number of thousands of digits
        why = said(error)
        raise InputError(f"{path}: not TOML ({why}); write it as in {page}") from None


def read_table(
    content: Mapping[str, object], readers: Mapping[str, Reader], where: str, also: Collection[str] = ()
) -> dict[str, Any]:
    """Every value of a table as its reader understands it, but for keys that somebody else reads `also`."""
    found = {}
    for key, value in content.items():
        if key in also:
            continue
        if key not in readers:
            raise InputError(f"{where}{shown(key)[1:-1]}: unknown key; {did_you_mean(key, sorted({*readers, *also}))}")
        found[key] = read(readers[key], value, f"{where}{key}")
    return found


def read(reader: Callable[[V], T], value: V, where: str) -> T:
    """What a reader makes of a value; an InputError begins with where that stands."""
    try:
        return reader(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def shown(value: object) -> str:
    """A value in a message: short, and nothing in it that a terminal would obey."""
    if _is_huge(value):
        return "such a large number"
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…{text[-1]}"


def text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        names = {bool: "truth value", list: "list", dict: "table"}
        kind = names.get(type(value), type(value).__name__)
        raise InputError(f"{shown(value)} is a {kind}; give a text or a number")
    if _is_huge(value):
        raise InputError(f"{shown(value)} does not do; give a smaller one")
    return str(value)


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and value.bit_length() > _MOST_BITS


def texts(value: object) -> str:
    """A list in TOML is what commas are on the command line."""
    return ",".join(text(item) for item in value) if isinstance(value, list) else text(value)


def truth(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise InputError(f"{shown(value)} is neither true nor false; give one of them")


def whole(least: int) -> Callable[[object], int]:
    def reader(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InputError(f"{shown(value)} does not do; give a whole number, at least {least}")
        return number

    return reader


def one_of(*choices: str) -> Callable[[object], str]:
    def reader(value: object) -> str:
        if value not in choices:
            raise InputError(f"{shown(value)} is not known; {did_you_mean(str(value), sorted(choices))}")
        return str(value)

    return reader


def path(value: object) -> Path:
    return Path(text(value)).expanduser()


def rate(value: object) -> float:
    return units.rate_bytes_s(text(value))


def duration(value: object) -> float:
    return units.duration_s(text(value))


def size(value: object) -> int:
    return units.size_bytes(text(value))


def sizes(value: object) -> tuple[int, ...]:
    """Bytes of each size, several in a list."""
    return tuple(units.size_bytes(item.strip()) for item in texts(value).split(","))


def seconds_between(least_s: float, most_s: float) -> Callable[[object], float]:
    """A reader of durations between these two, both included."""

    def reader(value: object) -> float:
        found = duration(value)
        if not least_s <= found <= most_s:
            raise InputError(f"{shown(value)} does not do; give a duration from {least_s:g}s to {most_s:g}s")
        return found

    return reader


def part(value: object) -> float:
    """A part of something, above 0 and at most 1."""
    try:
        found = float(text(value))
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise InputError(f"{shown(value)} does not do; give a number above 0 and at most 1, like 0.1")
    return found


def device_name(value: object) -> str:
    return DeviceSpec(name=text(value)).name  # which refuses what cannot be a name


def named_speeds(value: object) -> tuple[tuple[str, float], ...]:
    """(name, speed) of each emulated device."""
    if isinstance(value, dict):  # local = {desk = 1, pi = 0.25}
        value = [f"{name}={text(speed)}" for name, speed in value.items()]
    found = units.speeds(texts(value))
    for name, _ in found:
        device_name(name)
    return found


def one_speed(value: object) -> float:
    found = units.speeds(text(value))
    if len(found) > 1:
        raise InputError(f"{shown(value)} names several; give one speed, like 0.5")
    return found[0][1]


def named_paths(value: object) -> tuple[str, ...]:
    """NAME=PATH, several in a list."""
    return tuple(text(item) for item in value) if isinstance(value, list | tuple) else (text(value),)


def listen(value: object) -> str:
    """An address to listen at, as HOST:PORT."""
    host, port = split_address(text(value), port_needed=False)
    return f"{host}:{port}"


def ports(value: object) -> Ports:
    """A port, or the first and the last of several."""
    return port_range(text(value))


def network(value: object) -> IPv4Network:
    return plain_network(text(value))

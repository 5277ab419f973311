"""Readers of settings: from a flag's or variable's text, or a TOML value, to what it means.

Each raises an InputError that says what is wrong; whoever calls it says where.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

from potluck import units
from potluck.advice import did_you_mean
from potluck.errors import InputError
from potluck.settings.address import Ports, plain_network, port_range, split_address
from potluck.types import DeviceSpec


def text(value: object) -> str:
    """A text, or a number as one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{value!r} is a {_kind(value)}; give a text")
    return str(value)


def texts(value: object) -> str:
    """A list in TOML is what commas are on the command line."""
    return ",".join(text(item) for item in value) if isinstance(value, list) else text(value)


def truth(value: object) -> bool:
    """True or false, in a few words."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise InputError(f"{value!r} is neither true nor false; give one of them")


def whole(least: int) -> Callable[[object], int]:
    """A reader of whole numbers from `least` on."""

    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InputError(f"{value!r} does not do; give a whole number, at least {least}")
        return number

    return read


def one_of(*choices: str) -> Callable[[object], str]:
    """A reader of one of these words."""

    def read(value: object) -> str:
        if value not in choices:
            raise InputError(f"{value!r} is not known; {did_you_mean(str(value), sorted(choices))}")
        return str(value)

    return read


def path(value: object) -> Path:
    """A path, with ~ for the home folder."""
    return Path(text(value)).expanduser()


def named_speeds(value: object) -> tuple[tuple[str, float], ...]:
    """(name, speed) of each emulated device."""
    if isinstance(value, dict):  # local = {desk = 1, pi = 0.25}
        value = [f"{name}={text(speed)}" for name, speed in value.items()]
    found = units.speeds(texts(value))
    for name, _ in found:
        device_name(name)
    return found


def device_name(value: object) -> str:
    """A word that can name a device."""
    return DeviceSpec(name=text(value)).name  # which refuses what cannot be a name


def sizes(value: object) -> tuple[int, ...]:
    """Bytes of each size, several in a list."""
    return tuple(units.size_bytes(item.strip()) for item in texts(value).split(","))


def named_paths(value: object) -> tuple[str, ...]:
    """NAME=PATH, several in a list."""
    return tuple(text(item) for item in value) if isinstance(value, list | tuple) else (text(value),)


def one_speed(value: object) -> float:
    """The speed of one emulated device."""
    found = units.speeds(text(value))
    if len(found) > 1:
        raise InputError(f"{value!r} names several; give one speed, like 0.5")
    return found[0][1]


def listen(value: object) -> str:
    """An address to listen at, as HOST:PORT."""
    host, port = split_address(text(value), port_needed=False)
    return f"{host}:{port}"


def size_bytes(value: object) -> int:
    """Bytes of a size like "512MB"."""
    return units.size_bytes(text(value))


def rate_bytes_s(value: object) -> float:
    """Bytes per second of a rate like "100Mbit"."""
    return units.rate_bytes_s(text(value))


def duration_s(value: object) -> float:
    """Seconds of a duration like "90s"."""
    return units.duration_s(text(value))


def seconds_between(least_s: float, most_s: float) -> Callable[[object], float]:
    """A reader of durations between these two, both included."""

    def read(value: object) -> float:
        found = duration_s(value)
        if not least_s <= found <= most_s:
            raise InputError(f"{value!r} does not do; give a duration from {least_s:g}s to {most_s:g}s")
        return found

    return read


def part(value: object) -> float:
    """A part of something, above 0 and at most 1."""
    try:
        found = float(text(value))
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise InputError(f"{value!r} does not do; give a number above 0 and at most 1, like 0.1")
    return found


def ports(value: object) -> Ports:
    """A port, or the first and the last of several."""
    return port_range(text(value))


def network(value: object) -> IPv4Network:
    """A network like 192.168.1.0/24."""
    return plain_network(text(value))


def _kind(value: object) -> str:
    names = {bool: "truth value", list: "list", dict: "table"}
    return names.get(type(value), type(value).__name__)

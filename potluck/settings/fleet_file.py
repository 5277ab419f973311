"""A fleet in a TOML file: devices one has or only thinks of, and the links between them (docs/planning.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from potluck.errors import InputError
from potluck.settings import values
from potluck.types import DeviceSpec, Fleet, LinkSpec

MAX_DEVICES = 1000  # a search over more would take too long to be of use
_SLOWEST, _FASTEST = 1e-6, 1e6  # speeds anybody can mean; beyond, times are no longer numbers
_MOST_THREADS = 100_000  # of one device: no machine has as many
_LONGEST_DELAY_S = 3600.0  # of a link: an hour, beyond any network

Made = TypeVar("Made", DeviceSpec, LinkSpec)


def read_fleet(path: Path) -> Fleet:
    """The fleet of a TOML file; an InputError of one line names the file, the key and the fix."""
    content = values.read_toml(path, "fleet", "docs/planning.md")
    top = _fields(content, _FLEET, f"{path}: ", also=("device", "link"))
    devices = [
        _made(DeviceSpec, item, _DEVICE, where, needed="name", wanted="the device a name")
        for where, item in _tables(content, "device", path)
    ]
    if not devices:
        raise InputError(f"{path}: device: the fleet has none; give at least one as [[device]] with a name")
    if len(devices) > MAX_DEVICES:
        raise InputError(f"{path}: device: {len(devices)} of them; give at most {MAX_DEVICES}")
    _check_names([d.name for d in devices], path)
    links = [
        _made(LinkSpec, item, _LINK, where, needed="between", wanted='two devices, like ["desk", "pi"]')
        for where, item in _tables(content, "link", path)
    ]
    try:
        return Fleet(devices=tuple(devices), links=tuple(links), **top)
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix('fleet: ')}") from None


def _check_names(names: list[str], path: Path) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            first = names.index(name)
            raise InputError(
                f"{path}: device[{number}].name: {name!r} is already device[{first}]; give each its own name"
            )


def _tables(content: Mapping[str, Any], key: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every table under a key, with where it stands."""
    found = content.get(key, [])
    if not isinstance(found, list):
        raise InputError(f"{path}: {key}: one table, not a list of them; write [[{key}]] with two brackets")
    for number, item in enumerate(found):
        if not isinstance(item, dict):
            raise InputError(f"{path}: {key}[{number}]: {values.shown(item)} is no table; write it under [[{key}]]")
    return [(f"{path}: {key}[{number}]", item) for number, item in enumerate(found)]


def _made(
    make: type[Made],
    item: Mapping[str, Any],
    readers: Mapping[str, values.Reader],
    where: str,
    needed: str,
    wanted: str,
) -> Made:
    """What a table describes; it needs one of its keys, to give what is `wanted`."""
    fields = _fields(item, readers, f"{where}.")
    if needed not in fields:
        raise InputError(f"{where}.{needed}: missing; give {wanted}")
    return values.read(lambda given: make(**given), fields, where)


def _fields(
    content: Mapping[str, Any], readers: Mapping[str, values.Reader], where: str, also: Collection[str] = ()
) -> dict[str, Any]:
    """By the names that our types have for what a file says."""
    found = values.read_table(content, readers, where, also)
    return {_FIELDS.get(key, key): value for key, value in found.items()}


def _delay(value: object) -> float:
    delay_s = 0.0 if value in (0, "0") and value is not False else values.duration(value)
    if delay_s > _LONGEST_DELAY_S:
        raise InputError(f"{values.shown(value)} is too long for a message; give a latency like 1ms, at most 1h")
    return delay_s


def _memory(value: object) -> int:
    size = values.size(value)
    if not size:
        raise InputError(
            f"{values.shown(value)} is no memory at all; give a size like 4GB, or leave it out for no limit"
        )
    return size


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{values.shown(value)} is no number; give one above 0, 1 for the device that is measured")
    if value > 0 and not _SLOWEST <= value <= _FASTEST:
        raise InputError(f"{values.shown(value)} is no speed; give one from {_SLOWEST:g} to {_FASTEST:,.0f}")
    return float(max(value, -1))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{values.shown(value)} is no whole number; give at least 1")
    if value > _MOST_THREADS:
        raise InputError(f"{values.shown(value)} is too many; give at most {_MOST_THREADS}")
    return max(value, 0)


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(name, str) for name in value):
        raise InputError(f'{values.shown(value)} does not name two devices; give them like ["desk", "pi"]')
    return (value[0], value[1])


_FIELDS = {"bandwidth": "bandwidth_bytes_s", "latency": "latency_s", "memory": "memory_bytes"}  # where names differ
_FLEET = {"bandwidth": values.rate, "latency": _delay, "medium": values.one_of("full", "half", "shared")}
_DEVICE = {
    "name": values.text,
    "speed": _number,
    "memory": _memory,
    "kind": values.one_of("cpu", "cuda", "mps"),
    "threads": _count,
}
_LINK = {"between": _pair, "bandwidth": values.rate, "latency": _delay}

"""A fleet in a TOML file: devices one has or only thinks of, and the links between them (docs/planning.md)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from potluck import units
from potluck.advice import did_you_mean, said
from potluck.errors import InputError
from potluck.types import DeviceSpec, Fleet, LinkSpec

MAX_FILE_BYTES = 1 << 20  # a kilobyte for each of the most devices
MAX_DEVICES = 1000  # a search over more would take too long to be of use
_SLOWEST, _FASTEST = 1e-6, 1e6  # speeds anybody can mean; beyond, times are no longer numbers
_MOST_THREADS = 100_000  # of one device: no machine has as many
_LONGEST_DELAY_S = 3600.0  # of a link: an hour, beyond any network


def read_fleet(path: Path) -> Fleet:
    """The fleet of a TOML file; an InputError of one line names the file, the key and the fix."""
    content = _parse(path)
    top = _read(content, _FLEET, {"device", "link"}, f"{path}: ")
    devices = [_device(item, path, number) for number, item in enumerate(_tables(content, "device", path))]
    if not devices:
        raise InputError(f"{path}: device: the fleet has none; give at least one as [[device]] with a name")
    if len(devices) > MAX_DEVICES:
        raise InputError(f"{path}: device: {len(devices)} of them; give at most {MAX_DEVICES}")
    _check_names([d.name for d in devices], path)
    links = [_link(item, path, number) for number, item in enumerate(_tables(content, "link", path))]
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


def _device(item: object, path: Path, number: int) -> DeviceSpec:
    where = f"{path}: device[{number}]"
    values = _read(_table(item, where), _DEVICE, set(), f"{where}.")
    if "name" not in values:
        raise InputError(f"{where}.name: missing; give the device a name")
    try:
        return DeviceSpec(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _link(item: object, path: Path, number: int) -> LinkSpec:
    where = f"{path}: link[{number}]"
    values = _read(_table(item, where), _LINK, set(), f"{where}.")
    if "between" not in values:
        raise InputError(f'{where}.between: missing; give two devices, like ["desk", "pi"]')
    try:
        return LinkSpec(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _table(item: object, where: str) -> Mapping[str, Any]:
    if not isinstance(item, dict):
        kind = where.rsplit(" ", 1)[-1].split("[")[0]
        raise InputError(f"{where}: {_shown(item)} is no table; write it under [[{kind}]]")
    return item


def _tables(content: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    found = content.get(key, [])
    if not isinstance(found, list):
        raise InputError(f"{path}: {key}: one table, not a list of them; write [[{key}]] with two brackets")
    return found


_Readers = Mapping[str, tuple[str, Callable[[object], Any]]]  # key in the file → field, reader


def _read(content: Mapping[str, Any], readers: _Readers, also: set[str], where: str) -> dict[str, Any]:
    found = {}
    for key, value in content.items():
        if key in also:
            continue
        if key not in readers:
            raise InputError(f"{where}{_shown(key)[1:-1]}: unknown key; {did_you_mean(key, sorted({*readers, *also}))}")
        field, reader = readers[key]
        try:
            found[field] = reader(value)
        except InputError as error:
            raise InputError(f"{where}{key}: {error}") from None
    return found


def _shown(value: object) -> str:
    """A value in a message: short, and nothing in it that a terminal would obey."""
    if isinstance(value, int) and value.bit_length() > 256:
        return "such a large number"
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…{text[-1]}"


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{_shown(value)} does not do; give a text or a number")
    if isinstance(value, int) and value.bit_length() > 256:
        raise InputError(f"{_shown(value)} does not do; give a smaller one")
    return str(value)


def _rate(value: object) -> float:
    return units.rate_bytes_s(_text(value))


def _delay(value: object) -> float:
    delay_s = 0.0 if value in (0, "0") and value is not False else units.duration_s(_text(value))
    if delay_s > _LONGEST_DELAY_S:
        raise InputError(f"{_shown(value)} is too long for a message; give a latency like 1ms, at most 1h")
    return delay_s


def _memory(value: object) -> int:
    size = units.size_bytes(_text(value))
    if not size:
        raise InputError(f"{_shown(value)} is no memory at all; give a size like 4GB, or leave it out for no limit")
    return size


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{_shown(value)} is no number; give one above 0, 1 for the device that is measured")
    if value > 0 and not _SLOWEST <= value <= _FASTEST:
        raise InputError(f"{_shown(value)} is no speed; give one from {_SLOWEST:g} to {_FASTEST:,.0f}")
    return float(max(value, -1))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{_shown(value)} is no whole number; give at least 1")
    if value > _MOST_THREADS:
        raise InputError(f"{_shown(value)} is too many; give at most {_MOST_THREADS}")
    return max(value, 0)


def _one_of(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in choices:
            raise InputError(f"{_shown(value)} is not known; give one of {', '.join(choices)}")
        return str(value)

    return read


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(name, str) for name in value):
        raise InputError(f'{_shown(value)} does not name two devices; give them like ["desk", "pi"]')
    return (value[0], value[1])


_FLEET: _Readers = {
    "bandwidth": ("bandwidth_bytes_s", _rate),
    "latency": ("latency_s", _delay),
    "medium": ("medium", _one_of("full", "half", "shared")),
}
_DEVICE: _Readers = {
    "name": ("name", _text),
    "speed": ("speed", _number),
    "memory": ("memory_bytes", _memory),
    "kind": ("kind", _one_of("cpu", "cuda", "mps")),
    "threads": ("threads", _count),
}
_LINK: _Readers = {
    "between": ("between", _pair),
    "bandwidth": ("bandwidth_bytes_s", _rate),
    "latency": ("latency_s", _delay),
}


def _parse(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise InputError(f"{path}: more than {MAX_FILE_BYTES} bytes; give the path of a fleet file")
        return tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a fleet file") from None
    except (ValueError, RecursionError) as error:  # of the decoder, also for a number of thousands of digits
        why = said(error)
        raise InputError(f"{path}: not TOML ({why}); write it as in docs/planning.md") from None

"""A script of faults for a rehearsal on one's own devices (docs/survival.md): what befalls whom, after which round."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import msgspec

from potluck.errors import InputError
from potluck.types import Value

FaultKind = Literal["kill", "freeze", "slow", "leave"]
_MAX_BYTES = 1 << 20
_ENDLESS = 1e9  # rounds or seconds; no number is not below it either


class Fault(Value, frozen=True, kw_only=True):
    """Something that a device is to do to itself."""

    device: str
    do: FaultKind
    after_round: int
    seconds: float = 5.0  # of being frozen or slow
    factor: float = 4.0  # how many times as slow


def read_script(path: Path) -> tuple[Fault, ...]:
    """The faults of a TOML file, in the order of their rounds; an InputError of one line says what is wrong."""
    try:
        text = path.read_bytes()[:_MAX_BYTES].decode()
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: cannot be read: {why}; give a TOML file with [[fault]] tables") from None
    if set(content) != {"fault"} or not isinstance(content["fault"], list):
        raise InputError(f"{path}: give faults as [[fault]] tables with device, do and after_round, and nothing else")
    faults = [_fault(item, f"{path}: fault[{number}]") for number, item in enumerate(content["fault"])]
    return tuple(sorted(faults, key=lambda fault: fault.after_round))


def _fault(item: object, where: str) -> Fault:
    try:
        fault = msgspec.convert(item, Fault)
    except msgspec.ValidationError as error:
        kinds = ", ".join(get_args(FaultKind))
        raise InputError(f"{where}: {error}; it has device, do ({kinds}), after_round, seconds, factor") from None
    for name, value, least in (("after_round", fault.after_round, 0), ("seconds", fault.seconds, 0.0)):
        if not least <= value < _ENDLESS:
            raise InputError(f"{where}.{name}: {value}; give {least} or more")
    if not 1 <= fault.factor < _ENDLESS:
        raise InputError(f"{where}.factor: {fault.factor}; give 1 or more")
    return fault


def check_devices(faults: Iterable[Fault], here: Iterable[str], willing: Iterable[str]) -> None:
    """An InputError unless every device of the script is here and may be treated like that."""
    known, agreed = set(here), set(willing)
    for fault in faults:
        if fault.device not in known:
            raise InputError(f"--chaos: {fault.device} is not here; there are {', '.join(sorted(known))}")
        if fault.device not in agreed:
            raise InputError(f"--chaos: {fault.device} did not agree to it; start it with potluck join --chaos")

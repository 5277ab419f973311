"""Sizes, rates, durations, speeds and names as people write them: "512MB", "100Mbit", "5min", "1,0.5"."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from difflib import get_close_matches

from potluck.errors import InputError

_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

SIZES = {prefix + "B": factor for prefix, factor in (_PREFIXES | _BINARY).items()}
RATES = {prefix + "bit": factor / 8 for prefix, factor in _PREFIXES.items()} | {
    prefix + "B": float(factor) for prefix, factor in (_PREFIXES | _BINARY).items()
}
DURATIONS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def size_bytes(text: str) -> int:
    """Bytes of a size like "512MB" or "2GiB"; a bare number is bytes."""
    number, unit = _split(text, "size", "512MB")
    if unit and unit not in SIZES:
        raise _unknown(text, unit, SIZES, "size", "512MB")
    return round(number * SIZES[unit or "B"])


def rate_bytes_s(text: str) -> float:
    """Bytes per second of a rate like "100Mbit" or "12MB/s". It needs a unit, as bits and bytes are both usual."""
    number, unit = _split(text, "rate", "100Mbit")
    unit = unit.removesuffix("/s")
    if not unit:
        raise InputError(f"{text!r} has no unit; give a rate like 100Mbit or 12MB/s")
    if unit not in RATES:
        raise _unknown(text, unit, RATES, "rate", "100Mbit")
    if number == 0:
        raise InputError(f"{text!r} would let nothing through; give a rate above 0, or leave it out for no limit")
    if number * RATES[unit] < RATES["bit"]:
        raise InputError(f"{text!r} would let next to nothing through; give a rate like 100Mbit, at least 1bit")
    return number * RATES[unit]


def duration_s(text: str) -> float:
    """Seconds of a duration like "90s" or "5min"; a bare number is seconds."""
    number, unit = _split(text, "duration", "90s")
    if unit and unit not in DURATIONS:
        raise _unknown(text, unit, DURATIONS, "duration", "90s")
    if number == 0:
        raise InputError(f"{text!r} leaves no time at all; give a duration above 0, like 90s")
    return number * DURATIONS[unit or "s"]


def speeds(text: str) -> tuple[tuple[str, float], ...]:
    """(name, speed) of each emulated device in "1,0.5" or "desk=1,pi=0.5"; without names they are numbered."""
    items = [item.strip() for item in text.split(",")]
    found = []
    for place, item in enumerate(items, start=1):
        name, given, value = item.rpartition("=")
        default = "local" if len(items) == 1 else f"local{place}"
        found.append((name.strip() if given else default, _speed(value.strip(), text)))
    names = [name for name, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{text!r} has {twice!r} twice; give each device its own name")
    return tuple(found)


def size_text(size: float) -> str:
    """A size for people: "1.5 MB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"


def duration_text(seconds: float) -> str:
    """A duration for people: "42 s", "3:07 min", "2:05 h"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def names_text(names: Sequence[str], most: int = 3) -> str:
    """Names for people, where they are many only the first: "a, b, c", "a, b and 36 more"."""
    few = len(names) <= most
    return ", ".join(names) if few else f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


def milliseconds(seconds: float) -> str:
    """A short duration for people: "1.25 s", "251.2 ms", "80 µs"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"


def factor_text(times: float, what: str) -> str:
    """How much longer or shorter than `what` something takes: "18% slower than …", "2.4 times as fast as …"."""
    if abs(times - 1) < 0.005:
        return f"as fast as {what}"
    if times > 1:
        return f"{times - 1:.0%} slower than {what}" if times < 2 else f"{times:,.1f} times as slow as {what}"
    return f"{1 - times:.0%} faster than {what}" if times > 0.5 else f"{1 / times:,.1f} times as fast as {what}"


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z/]*)\s*", text)
    if found is None:
        raise InputError(f"{text!r} is no {what}; give a number and a unit, like {example}")
    number = float(found[1])
    if not math.isfinite(number) or number > 1e18:
        raise InputError(f"{text!r} is too large; give a {what} like {example}")
    return number, found[2]


def _unknown(text: str, unit: str, units: dict[str, int] | dict[str, float], what: str, example: str) -> InputError:
    folded = {known.lower(): known for known in units}
    near = get_close_matches(unit.lower(), folded, n=1, cutoff=0.75)  # "m" is as near to "ms" as to "min"
    known = f"give a {what} like {example}, in {', '.join(units)}"
    hint = f"did you mean {folded[near[0]]}?" if near else known
    return InputError(f"{text!r} has the unknown unit {unit!r}; {hint}")


def _speed(value: str, text: str) -> float:
    try:
        speed = float(value)
    except ValueError:
        raise InputError(f"{text!r}: {value!r} is no speed; give numbers above 0 and at most 1, like 1,0.5") from None
    if not 0 < speed <= 1:
        raise InputError(f"{text!r}: speed {value} cannot be emulated; give numbers above 0 and at most 1, like 1,0.5")
    return speed

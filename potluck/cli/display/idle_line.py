"""Who is idle and why, in one line for however many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.types import FIGURE, IdleReason
from potluck.units import names_text


def idle_text(idle: Mapping[str, IdleReason]) -> str:
    """Names, the reason that most of them have, and what would change it; reasons that differ by a figure are one."""
    alike: dict[str, list[str]] = {}
    for device, reason in idle.items():
        alike.setdefault(reason.kind, []).append(device)
    most, *others = sorted(alike.values(), key=len, reverse=True)
    why = _of_all([idle[device].why for device in most])
    rest = sum(map(len, others))
    more = f", and {rest} for other reasons" if rest else ""
    takes = "takes" if len(idle) == 1 else "take"
    names = names_text([*most, *(device for some in others for device in some)])
    return f"{names}: {why}{more}; {takes} part when {idle[most[0]].until}"


def _of_all(whys: Sequence[str]) -> str:
    """Reasons that are the same but for their figures: "takes 0.3% to 5.0% longer"."""
    figures = list(zip(*(FIGURE.findall(why) for why in whys), strict=True))
    ranges = iter([_range(sorted(set(of_all), key=lambda text: float(text[:-1]))) for of_all in figures])
    return FIGURE.sub(lambda _: next(ranges), whys[0])


def _range(figures: Sequence[str]) -> str:
    return figures[0] if len(figures) == 1 else f"{figures[0]} to {figures[-1]}"

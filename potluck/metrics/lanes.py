"""Who did what, from when to when, and what part of the time devices computed: in trained rounds and simulated ones.

Pure: the one place that says what is busy. Terminal, picture, page and report only draw it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from potluck.types import RoundRecord

COMPUTES = ("forward", "backward", "weights", "update")  # of the kinds of action; in others a device waits for somebody


class Span(NamedTuple):
    """Something a device did."""

    device: str
    kind: str  # of the action, or "update"
    round: int
    micro_batch: int
    start_s: float
    stop_s: float


def busy_s(took: Mapping[str, float]) -> float:
    """Seconds that a device computed, of its seconds by action."""
    return sum(took.get(kind, 0.0) for kind in COMPUTES)


def busy_part(busy_s: float, whole_s: float) -> float:
    """The part of some time that was computed, at most all of it; of no time none."""
    return min(1.0, busy_s / whole_s) if whole_s > 0 else 0.0


def busy_parts(record: RoundRecord) -> dict[str, float]:
    """The part of its time that each device computed in a round, waiting for others and for the verdict counted."""
    return {device: busy_part(busy_s(took), sum(took.values())) for device, took in record.spent_s.items()}


def computed_s(spans: Iterable[Span], devices: Collection[str]) -> dict[str, float]:
    """Seconds that each of the devices computed."""
    found = dict.fromkeys(devices, 0.0)
    for span in spans:
        if span.device in found and span.kind in COMPUTES:
            found[span.device] += span.stop_s - span.start_s
    return found


def utilisation(busy_s: Collection[float], whole_s: float) -> float:
    """The part of so many seconds that devices computed, in the mean; no time at all counts as used."""
    return sum(busy_s) / (whole_s * len(busy_s)) if whole_s and busy_s else 1.0


def lanes(spans: Iterable[Span], devices: Sequence[str], begin_s: float, end_s: float) -> dict[str, list[Span]]:
    """What each device did in a window of time, in the order given; spans that reach beyond it are whole."""
    found: dict[str, list[Span]] = {device: [] for device in devices}
    for span in spans:
        if span.stop_s > begin_s and span.start_s < end_s:
            found[span.device].append(span)
    return found

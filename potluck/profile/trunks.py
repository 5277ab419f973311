"""Lines that several links share: two rooms with one cable between them. Found from what links carry, and by trying.

Links were measured several at a time. Where all links between two sets of devices carry far less than the devices
inside each set can do, either each of them is slow or all share one line: one pair alone, then several pairs at once,
tell which.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from potluck.profile.network import PROCESSOR_BOUND_BYTES_S, Pair, Probing
from potluck.types import COORDINATOR, TRUNK_ARROW

MOST_ROOMS = 4  # beyond, trying every two of them would take too long
_SLOW = 0.5  # of what both ends can do
_SHARED = 0.75  # of what a pair carries by itself: less for each of several at once
_AT_ONCE = 3  # pairs


@dataclass(frozen=True)
class Passage:
    """Two rooms, and pairs from one to the other that have no device in common."""

    rooms: tuple[tuple[str, ...], tuple[str, ...]]
    pairs: tuple[Pair, ...]  # of two or more


def rooms(found: Mapping[Pair, Probing]) -> list[tuple[str, ...]]:
    """Devices, and the coordinator, that reach each other as fast as their own lines allow, if by way of others."""
    rates = {pair: min(probing.bandwidth_bytes_s, PROCESSOR_BOUND_BYTES_S) for pair, probing in found.items()}
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    for (source, target), rate in rates.items():
        out[source], into[target] = max(out.get(source, 0.0), rate), max(into.get(target, 0.0), rate)
    home = {name: {name} for name in (*out, *into)}
    for (source, target), rate in rates.items():
        if rate >= _SLOW * min(out[source], into[target]) and home[source] is not home[target]:
            home[source] |= home[target]
            for name in home[target]:
                home[name] = home[source]
    return sorted({tuple(sorted(together)) for together in home.values()})


def passages(found: Mapping[Pair, Probing]) -> list[Passage]:
    """Between which rooms there may be one line for all. A device alone in a room has a slow line of its own."""
    every = rooms(found)
    if len(every) > MOST_ROOMS:
        return []
    result = []
    for place, first in enumerate(every):
        for second in every[place + 1 :]:
            # The coordinator has other things to do: last, and never as the second of a pair.
            ends = [sorted(room, key=lambda name: name == COORDINATOR) for room in (first, second)]
            pairs = [(b, a) if b == COORDINATOR else (a, b) for a, b in zip(*ends, strict=False)]
            if len(pairs) > 1:
                result.append(Passage((first, second), tuple(pairs[:_AT_ONCE])))
    return result


def is_shared(alone: Mapping[Pair, Probing], at_once: Mapping[Pair, Probing]) -> bool:
    """Whether pairs carry clearly less at once than one of them did alone, in both directions together."""
    by_itself = statistics.fmean(p.bandwidth_bytes_s for p in alone.values())
    together = statistics.fmean(p.bandwidth_bytes_s for p in at_once.values())
    return together < _SHARED * by_itself


def through(
    passage: Passage, alone: Mapping[Pair, Probing], found: Mapping[Pair, Probing]
) -> tuple[dict[Pair, Probing], dict[Pair, str]]:
    """Every link between the two rooms as what the line carries, and the line's name by link: one for each way."""
    first, second = passage.rooms
    probings, names = {}, {}
    for sources, targets in ((first, second), (second, first)):
        known = next(p for (source, _), p in alone.items() if source in sources)
        for pair in found:
            if pair[0] in sources and pair[1] in targets:
                probings[pair] = known
                names[pair] = f"{'+'.join(sources)}{TRUNK_ARROW}{'+'.join(targets)}"
    return probings, names

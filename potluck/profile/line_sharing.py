"""Lines that several links share: two rooms with one cable between them. Found from what links carry, and by trying.

Links were measured several at a time. Where all links between two sets of devices carry far less than the devices
inside each set can do, either each of them is slow or all share one line: one pair alone, then several pairs at once,
tell which.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from potluck.profile.network import PROCESSOR_BOUND_BYTES_S, DevicePair, Probing, Trunk
from potluck.types import COORDINATOR, TRUNK_ARROW

MOST_ROOMS = 4  # beyond, trying every two of them would take too long
_SLOW = 0.5  # of what both ends can do: what carries less than half has something between its ends
_SHARED = 0.75  # of what a pair carries by itself: less for each of several at once
_AT_ONCE = 3  # pairs that send at once: enough to see that they share


@dataclass(frozen=True)
class Passage:
    """Two rooms, and pairs from one to the other that have no device in common."""

    rooms: tuple[tuple[str, ...], tuple[str, ...]]
    pairs: tuple[DevicePair, ...]  # of two or more


def rooms(found: Mapping[DevicePair, Probing]) -> list[tuple[str, ...]]:
    """Devices, and the coordinator, that reach each other as fast as their own lines allow, if by way of others.

    The fastest links join first: one with a slow line of its own, that reaches two rooms alike, then joins no two.
    """
    rates = _rates(found)
    own = _own(rates)
    home = {name: {name} for name in own}
    for (one, other), rate in sorted(rates.items(), key=lambda item: -item[1]):
        first, second = home[one], home[other]
        if first is not second and rate >= _SLOW * min(_fastest(first, own), _fastest(second, own)):
            first |= second
            home |= dict.fromkeys(second, first)
    joined = sorted({tuple(sorted(room)) for room in home.values()})
    return sorted(tuple(sorted(room)) for room in _settled(joined, rates, own))


def _rates(found: Mapping[DevicePair, Probing]) -> dict[DevicePair, float]:
    """What each pair carries in the worse direction: a line may be fast one way only."""
    rates: dict[DevicePair, float] = {}
    for ends, probing in found.items():
        pair = min(ends), max(ends)
        rates[pair] = min(rates.get(pair, PROCESSOR_BOUND_BYTES_S), probing.bandwidth_bytes_s)
    return rates


def _own(rates: Mapping[DevicePair, float]) -> dict[str, float]:
    """What the line of each end carries, as far as its links show."""
    own: dict[str, float] = {}
    for pair, rate in rates.items():
        for name in pair:
            own[name] = max(own.get(name, 0.0), rate)
    return own


def _fastest(room: Iterable[str], own: Mapping[str, float]) -> float:
    return max(own[name] for name in room)


def _settled(
    joined: Sequence[tuple[str, ...]], rates: Mapping[DevicePair, float], own: Mapping[str, float]
) -> list[set[str]]:
    """Each with a slow line of its own in the room whose others it mostly reaches best: one link says too little."""
    firm = [{name for name in room if own[name] >= _SLOW * _fastest(room, own)} for room in joined]
    settled = [set(room) for room in firm]
    for home, stay in zip(joined, firm, strict=True):
        for name in {*home} - stay:
            reach = [[rate for pair, rate in rates.items() if name in pair and room & set(pair)] for room in firm]
            worth = [(statistics.median(to or [0.0]), room is stay) for to, room in zip(reach, firm, strict=True)]
            settled[worth.index(max(worth))].add(name)
    return settled


def passages(found: Mapping[DevicePair, Probing]) -> list[Passage]:
    """Between which rooms there may be one line for all. A device alone in a room has a slow line of its own."""
    # The coordinator has other things to do: last. Its room is the first, so that all pairs send the same way at once.
    every = sorted(rooms(found), key=lambda room: COORDINATOR not in room)
    if len(every) > MOST_ROOMS:
        return []
    rates = _rates(found)
    own = _own(rates)
    result = []
    for first, second in combinations(every, 2):
        across = max(rates.get((min(way), max(way)), 0.0) for way in product(first, second))
        # Whose own line is slower than that says nothing about the line between.
        able = [[name for name in room if own[name] >= across] for room in (first, second)]
        pairs = list(zip(*(sorted(ends, key=lambda name: name == COORDINATOR) for ends in able), strict=False))
        if len(pairs) > 1:
            result.append(Passage((first, second), tuple(pairs[:_AT_ONCE])))
    return result


def through(
    passage: Passage, alone: Mapping[DevicePair, Probing], at_once: Mapping[DevicePair, Probing]
) -> dict[DevicePair, Trunk]:
    """Every link between the two rooms, measured or not, by the line it shares: one for each way that is shared.

    A way is shared if pairs carry clearly less at once than one of them did alone; the other may have room for all.
    """
    first, second = passage.rooms
    trunks: dict[DevicePair, Trunk] = {}
    for sources, targets in ((first, second), (second, first)):
        known = next(p for (source, _), p in alone.items() if source in sources)
        together = statistics.fmean(p.bandwidth_bytes_s for (source, _), p in at_once.items() if source in sources)
        if together < _SHARED * known.bandwidth_bytes_s:
            trunk = Trunk(f"{'+'.join(sources)}{TRUNK_ARROW}{'+'.join(targets)}", known)
            trunks |= dict.fromkeys(product(sources, targets), trunk)
    return trunks

"""Links: who is measured with whom and when, the measurement of one link, and what stands for links not measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from potluck.types import COORDINATOR, LinkProfile, Medium
from potluck.wire.link import Link, Tag

ALL_PAIRS_UP_TO = 8  # devices; beyond, a ring and everybody's link to the coordinator

_PINGS = 5  # there and back, of which the median counts, but for the first
_FIRST_BYTES = 16 * 1024  # of a probe: a slow line carries them in a moment, and they tell how much more fits
_MOST_BYTES = 8 * 2**20  # of a probe: an eighth of the usual window of a link
_LONG_ENOUGH_S = 0.1  # against latency, the grain of the clock and of a CPU quota
_LEAST_S = 0.02  # what is shorter says nothing, however little time there is
_REPEATS = 3  # of the probe that is long enough: the fewest with a median
PROCESSOR_BOUND_BYTES_S = 400e6  # what is faster is limited by copying, and says nothing about the medium
_HALF = 1.5  # both directions at once take so much longer where they share the line: halfway between once and twice

DevicePair = tuple[str, str]


@dataclass(frozen=True)
class Probing:
    """What one direction of a link was found to carry."""

    bandwidth_bytes_s: float
    latency_s: float
    both_ratio: float  # how much longer it takes while as much comes the other way


@dataclass(frozen=True)
class Trunk:
    """One direction of a line that several links share."""

    name: str
    probing: Probing  # of one link that had it to itself


def pair_rounds(devices: Sequence[str]) -> list[list[DevicePair]]:
    """Pairs to measure, in rounds in which nobody takes part twice; the coordinator is one of the nodes."""
    nodes = [COORDINATOR, *devices]
    if len(devices) <= ALL_PAIRS_UP_TO:
        return _tournament(nodes)
    ring = [(devices[i], devices[(i + 1) % len(devices)]) for i in range(len(devices))]
    return _packed([*ring, *((COORDINATOR, device) for device in devices)])


def _tournament(nodes: Sequence[str]) -> list[list[DevicePair]]:
    """Everybody meets everybody: one stays, the others move round."""
    places: list[str | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return [pairs for pairs in rounds if pairs]


def _packed(pairs: Sequence[DevicePair]) -> list[list[DevicePair]]:
    """Pairs in as few rounds as going through them in order gives."""
    rounds: list[list[DevicePair]] = []
    for pair in pairs:
        for members in rounds:
            if not any(set(pair) & set(other) for other in members):
                members.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def probe(link: Link, peer: str, lead: bool, budget_s: float, timeout_s: float) -> Probing:
    """What the way from here to the peer carries. The peer calls this at the same time, with the other `lead`."""
    if lead:
        found = _lead(link, peer, budget_s / 2, timeout_s)
        _follow(link, peer, timeout_s)
    else:
        _follow(link, peer, timeout_s)
        found = _lead(link, peer, budget_s / 2, timeout_s)
    return found


def _lead(link: Link, peer: str, budget_s: float, timeout_s: float) -> Probing:
    """Sends ever larger messages until one takes long enough, then that one a few times, alone and both ways."""
    deadline = time.monotonic() + budget_s
    rally = _Rally(link, peer, timeout_s)
    pings = [rally.send(0, 0) for _ in range(_PINGS)]
    round_trip_s = statistics.median(pings[1:])
    size = _FIRST_BYTES
    alone, both = rally.twice(size), list[float]()
    while (took := min(alone)) < _LONG_ENOUGH_S and size < _MOST_BYTES:
        more = 4 if took < _LONG_ENOUGH_S / 4 else 2
        if took > _LEAST_S and time.monotonic() + 2 * more * took > deadline:  # it must still fit
            break
        size *= more
        alone = rally.twice(size)
    for _ in range(_REPEATS):
        if time.monotonic() + 3 * took > deadline:
            break
        alone.append(rally.send(size, 0))
        both.append(rally.send(size, size))
    rally.over()
    alone_s = max(statistics.median_low(alone) - round_trip_s, 1e-6)
    both_s = max(statistics.median_low(both or alone) - round_trip_s, 1e-6)
    return Probing(size / alone_s, round_trip_s / 2, both_s / alone_s)


def _follow(link: Link, peer: str, timeout_s: float) -> None:
    """Answers each message, with as many bytes as it asks for, until the other is done."""
    number = 0
    while True:
        [head, *_] = link.receive(peer, Tag("probe-head", 0, 0, number), timeout_s)
        back = int.from_bytes(head, "little")
        if back:
            link.send(peer, Tag("probe-back", 0, 0, number), [bytes(back)], timeout_s)
        body = link.receive(peer, Tag("probe", 0, 0, number), timeout_s)
        over = len(body) == 2
        link.send(peer, Tag("probe-ack", 0, 0, number), [b"\0"], timeout_s)
        if over:
            return
        number += 1


class _Rally:
    """Messages to one peer and its answers."""

    def __init__(self, link: Link, peer: str, timeout_s: float) -> None:
        self._link, self._peer, self._timeout_s = link, peer, timeout_s
        self._number = 0

    def send(self, size: int, back: int) -> float:
        """Seconds until the peer has the message and says so, and until so many bytes of its own are here."""
        return self._exchange([bytes(size)], back)

    def twice(self, size: int) -> list[float]:
        """The same for a message sent twice: one moment of a busy peer must not decide."""
        return [self.send(size, 0), self.send(size, 0)]

    def over(self) -> None:
        """Tells the peer that it was the last."""
        self._exchange([b"", b"over"], 0)

    def _exchange(self, parts: list[bytes], back: int) -> float:
        link, peer, number = self._link, self._peer, self._number
        self._number += 1
        started = time.perf_counter()
        link.send(peer, Tag("probe-head", 0, 0, number), [back.to_bytes(8, "little")], self._timeout_s)
        link.send(peer, Tag("probe", 0, 0, number), parts, self._timeout_s)
        if back:
            link.receive(peer, Tag("probe-back", 0, 0, number), self._timeout_s)
        link.receive(peer, Tag("probe-ack", 0, 0, number), self._timeout_s)
        return time.perf_counter() - started


def medium(found: Mapping[DevicePair, Probing]) -> Medium:
    """Whether both directions of most links get through at once; "full" where only the processor is the limit."""
    votes = [p.both_ratio > _HALF for p in found.values() if p.bandwidth_bytes_s < PROCESSOR_BOUND_BYTES_S]
    return "half" if votes and 2 * sum(votes) > len(votes) else "full"


def link_profiles(
    devices: Sequence[str], found: Mapping[DevicePair, Probing], trunks: Mapping[DevicePair, Trunk] | None = None
) -> tuple[LinkProfile, ...]:
    """Every direction of every link; one that was not measured is as good as the worse of its two ends' others.

    Those of `trunks`, measured or not, are as good as the line they share: several took it at once when measured.
    """
    trunks = trunks or {}
    nodes = [COORDINATOR, *devices]
    links = []
    for source in nodes:
        for target in nodes:
            if source == target:
                continue
            pair = source, target
            trunk = trunks.get(pair)
            known = trunk.probing if trunk is not None else found.get(pair)
            if known is not None:
                rate, latency = known.bandwidth_bytes_s, known.latency_s
            else:
                near = [p for (a, b), p in found.items() if a == source or b == target] or list(found.values())
                if not near:
                    continue
                rate = min(
                    max((p.bandwidth_bytes_s for (a, _), p in found.items() if a == source), default=float("inf")),
                    max((p.bandwidth_bytes_s for (_, b), p in found.items() if b == target), default=float("inf")),
                    max(p.bandwidth_bytes_s for p in near),
                )
                latency = statistics.median(p.latency_s for p in near)
            link = LinkProfile(source=source, target=target, bandwidth_bytes_s=rate, latency_s=latency)
            links.append(replace(link, measured=pair in found, trunk="" if trunk is None else trunk.name))
    return tuple(links)

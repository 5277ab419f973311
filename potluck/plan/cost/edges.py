"""What crosses the cuts of a plan, and what it weighs: every part that needs to know asks here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from potluck.compress.codec_registry import wire_bytes
from potluck.types import RAW, Crossing, ModelFacts

StagePair = tuple[int, int]  # (earlier stage, later stage)
PairBytes = dict[StagePair, int]


class Handed(NamedTuple):
    """A value that goes from the earlier to the later stage of a pair, or its gradient, that comes back."""

    pair: StagePair
    crossing: Crossing
    back: bool


def handed(crossings: Iterable[Crossing], home: Sequence[int]) -> Iterator[Handed]:
    """Everything that stages give each other; `home` is the stage of each producer and consumer.

    A value used by several stages goes straight to each; its gradient is handed from the last of them to the one
    before, and so on to the stage that made it: each adds its own uses to what arrived, which is the order autograd
    adds in.
    """
    for crossing in crossings:
        maker = home[crossing.producer]
        users = sorted({home[c] for c in crossing.consumers} - {maker})
        for user in users:
            yield Handed((maker, user), crossing, False)
        for pair in pairwise([maker, *users]) if crossing.gradient else ():
            yield Handed(pair, crossing, True)


def message_bytes(crossing: Crossing, rows: int, codec: str) -> int:
    """Bytes on the wire of so many rows of a value, or of its gradient."""
    return wire_bytes(codec, crossing.shape_of(rows), crossing.dtype)


class Edges:
    """Answers for one model; every answer is kept."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._known: dict[tuple[tuple[StagePair, ...], tuple[str, ...]], tuple[PairBytes, PairBytes]] = {}
        self._weights: dict[str, dict[int, int]] = {}

    def row_bytes(self, crossing: Crossing, codec: str = RAW) -> int:
        """Bytes on the wire of one more row."""
        known = self._weights.setdefault(codec, {})
        if crossing.value not in known:
            known[crossing.value] = message_bytes(crossing, 3, codec) - message_bytes(crossing, 2, codec)
        return known[crossing.value]

    def between(self, stages: Sequence[StagePair], codecs: Sequence[str] = ()) -> tuple[PairBytes, PairBytes]:
        """(earlier, later) → bytes per row that go forward, and bytes per row of gradients that come back.

        The codec of either way is that of the earlier stage; raw, if none are given.
        """
        key = tuple(stages), tuple(codecs)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._between(*key)
        return found

    def _between(self, stages: tuple[StagePair, ...], codecs: tuple[str, ...]) -> tuple[PairBytes, PairBytes]:
        home = [index for index, (start, stop) in enumerate(stages) for _ in range(start, stop)]
        both: tuple[PairBytes, PairBytes] = ({}, {})
        for pair, crossing, back in handed(self._facts.crossings, home):
            size = self.row_bytes(crossing, codecs[pair[0]] if codecs else RAW)
            both[back][pair] = both[back].get(pair, 0) + size
        return both

    def at_cuts(self, codec: str = RAW) -> list[tuple[int, int]]:
        """For a cut before each block: bytes per row that cross it forward, and back."""
        sizes = []
        for cut in range(len(self._facts.blocks)):
            crossing = [c for c in self._facts.crossings if c.producer < cut <= max(c.consumers, default=-1)]
            out = sum(self.row_bytes(c, codec) for c in crossing)
            sizes.append((out, sum(self.row_bytes(c, codec) for c in crossing if c.gradient)))
        return sizes

    def fed(self, blocks: StagePair) -> int:
        """Bytes per row that the coordinator delivers to these blocks."""
        start, stop = blocks
        return sum(f.sample_bytes for f in self._facts.feeds if any(start <= c < stop for c in f.consumers))

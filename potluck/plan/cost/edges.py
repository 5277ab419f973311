"""What crosses the cuts of a plan: bytes per row from stage to stage, forward and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from potluck.types import ModelFacts

StagePair = tuple[int, int]  # (earlier stage, later stage)


class Edges:
    """Answers for one model; every answer is kept."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._known: dict[tuple[StagePair, ...], tuple[dict[StagePair, int], dict[StagePair, int]]] = {}

    def between(self, stages: Sequence[StagePair]) -> tuple[dict[StagePair, int], dict[StagePair, int]]:
        """(earlier, later) → bytes per row that go forward, and bytes per row of gradients that come back.

        A value used by several stages goes straight to each; its gradient is handed from the last of them to the one
        before, and so on to the stage that made it (`program/layout.py` has the same rule).
        """
        key = tuple(stages)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._between(key)
        return found

    def _between(self, stages: tuple[StagePair, ...]) -> tuple[dict[StagePair, int], dict[StagePair, int]]:
        home = [index for index, (start, stop) in enumerate(stages) for _ in range(start, stop)]
        forward: dict[StagePair, int] = {}
        back: dict[StagePair, int] = {}
        for crossing in self._facts.crossings:
            maker = home[crossing.producer]
            users = sorted({home[c] for c in crossing.consumers} - {maker})
            for user in users:
                forward[maker, user] = forward.get((maker, user), 0) + crossing.sample_bytes
            if crossing.gradient:
                for pair in pairwise([maker, *users]):
                    back[pair] = back.get(pair, 0) + crossing.sample_bytes
        return forward, back

    def at_cuts(self) -> list[tuple[int, int]]:
        """For a cut before each block: bytes per row that cross it forward, and back."""
        sizes = []
        for cut in range(len(self._facts.blocks)):
            crossing = [c for c in self._facts.crossings if c.producer < cut <= max(c.consumers, default=-1)]
            sizes.append((sum(c.sample_bytes for c in crossing), sum(c.sample_bytes for c in crossing if c.gradient)))
        return sizes

    def fed(self, blocks: StagePair) -> int:
        """Bytes per row that the coordinator delivers to these blocks."""
        start, stop = blocks
        return sum(f.sample_bytes for f in self._facts.feeds if any(start <= c < stop for c in f.consumers))

"""Where the state of a model is when devices are lost, and who gets what from whom to go on. Pure: names and numbers.

Every device says what it holds: the state it trains, copies of it from some rounds ago, copies it keeps for others. The
coordinator has the whole model as of its newest checkpoint. The recovery point is the newest round of which everything
can be put together from what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from potluck.types import COORDINATOR, Held, Move

Holdings = Mapping[str, Iterable[Held]]  # device → what it holds
NamesOf = Mapping[tuple[int, int], frozenset[str]]  # (term, stage) → tensors of that state


class Restart(NamedTuple):
    """Where training goes on, and what moves before that."""

    round: int
    moves: tuple[Move, ...]

    def moved_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes that go over links."""
        return sum(sizes[name] for move in self.moves if move.source != move.target for name in move.names)


def recovery_point(holdings: Holdings, names_of: NamesOf, wanted: frozenset[str], at_most: int) -> int | None:
    """The newest round, not above `at_most`, of which every wanted tensor is held by somebody."""
    found: dict[int, set[str]] = {}
    for states in holdings.values():
        for held in states:
            if held.round <= at_most:
                found.setdefault(held.round, set()).update(names_of[held.term, held.stage])
    return max((round for round, names in found.items() if wanted <= names), default=None)


def restart_at(
    round: int, holdings: Holdings, names_of: NamesOf, wanted: Mapping[str, frozenset[str]], sizes: Mapping[str, int]
) -> Restart:
    """Who gives what to whom so that every device has what it wants as of a round.

    What a device holds itself stays there. The rest comes from whoever has given least so far; from the coordinator
    only what no device holds, as everybody would wait for its one link.
    """
    holders: dict[str, list[tuple[str, Held]]] = {}
    for device, states in holdings.items():
        for held in sorted((h for h in states if h.round == round), key=lambda h: not h.live):
            for name in names_of[held.term, held.stage]:
                holders.setdefault(name, []).append((device, held))
    given: dict[str, int] = {}
    found: dict[tuple[str, str, Held], list[str]] = {}
    for target, names in wanted.items():
        for name in sorted(names, key=lambda n: (-sizes[n], n)):
            source, held = _source(holders[name], target, given)
            if source != target:
                given[source] = given.get(source, 0) + sizes[name]
            found.setdefault((source, target, held), []).append(name)
    moves = (Move(source=s, target=t, held=h, names=tuple(sorted(names))) for (s, t, h), names in found.items())
    return Restart(round, tuple(moves))


def _source(candidates: list[tuple[str, Held]], target: str, given: Mapping[str, int]) -> tuple[str, Held]:
    def reluctance(candidate: tuple[str, Held]) -> tuple[bool, bool, int, str]:
        device = candidate[0]
        return device != target, device == COORDINATOR, given.get(device, 0), device

    return min(candidates, key=reluctance)

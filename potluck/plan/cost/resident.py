"""From a rehearsal to a figure for planning: how many bytes a process takes for each byte its tensors need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from potluck.plan.cost.memory import SpanBytes, stage_bytes
from potluck.plan.cost.tables import DeviceTables
from potluck.types import DeviceProfile, ModelFacts

IN_FLIGHT = 2  # micro-batches between forward and backward in a rehearsal
USUAL = 1.3  # where nothing was rehearsed
_LEAST, _MOST = 1.0, 4.0


class RehearsedMemory(Protocol):
    """How much a process grew while it trained some blocks."""

    @property
    def blocks(self) -> tuple[int, int]:
        """Which."""

    @property
    def grown_bytes(self) -> int:
        """By how much."""

    @property
    def micro_batches(self) -> int:
        """How many it trained."""


def to_rehearse(facts: ModelFacts) -> tuple[tuple[int, int], ...]:
    """Two runs of blocks with about half of what all blocks keep each, as early and late blocks differ most; the first
    of them twice, as what it takes only once is not the tensors'."""
    count, whole = len(facts.blocks), sum(b.stash_bytes for b in facts.blocks)
    done = 0
    for block in facts.blocks[:-1]:
        done += block.stash_bytes
        if 2 * done >= whole:
            early, late = (0, block.index + 1), (block.index + 1, count)
            return (early, early, late)
    return ((0, count), (0, count))


def with_resident(
    profile: DeviceProfile, facts: ModelFacts, rows: int, in_flight: int, rehearsed: Iterable[RehearsedMemory]
) -> DeviceProfile:
    """The profile with what the rehearsals showed; a block that took part in none gets the usual or the worst."""
    tables = DeviceTables(profile)
    factors: dict[int, float] = {}
    first: dict[tuple[int, int], int] = {}
    code = 0
    trained = 0
    for rehearsal in rehearsed:
        trained += rehearsal.micro_batches
        if rehearsal.blocks in first:  # what it took the first time and not again, kernels keep
            code = max(code, first[rehearsal.blocks] - rehearsal.grown_bytes)
        first.setdefault(rehearsal.blocks, rehearsal.grown_bytes)
        span = SpanBytes.of(facts, rehearsal.blocks)
        needed = stage_bytes(span, rows=rows, in_flight=in_flight, waiting=0, device=tables)
        factor = rehearsal.grown_bytes / max(1, needed.total)
        factors.update(dict.fromkeys(range(*rehearsal.blocks), min(_MOST, max(_LEAST, factor))))
    otherwise = max(USUAL, *factors.values()) if factors else USUAL
    blocks = (replace(block, resident=factors.get(i, otherwise)) for i, block in enumerate(profile.blocks))
    whole = len(factors) == len(profile.blocks)
    return replace(profile, blocks=tuple(blocks), code_bytes=code, rehearsed=trained if whole else 0)

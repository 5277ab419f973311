"""Who holds which rows of a micro-batch, and what therefore has to go from whom to whom.

The same functions serve activations, gradients (source and target swapped) and feeds (the coordinator holds all rows).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from potluck.plan.schedule.holders import turns
from potluck.types import Plan, Stage


class Part(msgspec.Struct, frozen=True):
    """The rows [start, stop) of a micro-batch that one device holds."""

    device: str
    start: int
    stop: int


class Route(msgspec.Struct, frozen=True):
    """The rows [start, stop) of a micro-batch that go from one device to another."""

    source: str
    target: str
    start: int
    stop: int


def micro_batch_sizes(samples: int, micro_batch_size: int) -> tuple[int, ...]:
    """Rows of each micro-batch of a round: full ones, then what is left. 10 samples by 4: (4, 4, 2).

    A single row left over gets company from the micro-batch before it, 9 by 4: (4, 3, 2), because statistics over a
    batch of one are not defined.
    """
    full, rest = divmod(samples, micro_batch_size)
    sizes = [micro_batch_size] * full + ([rest] if rest else [])
    if rest == 1 and full and micro_batch_size > 2:
        sizes[-2:] = [micro_batch_size - 1, 2]
    return tuple(sizes)


def rows(stage: Stage, micro_batch: int, size: int, plan: Plan) -> tuple[Part, ...]:
    """The parts of a micro-batch of `size` rows, in row order; who has no rows is left out.

    By samples the cuts are at floor(size * cumulative share / total): exactly the shares when the micro-batch is
    full, and never more than a member's share when it is not.
    """
    if not 0 <= micro_batch < plan.micro_batches or not 0 <= size <= plan.micro_batch_size:
        raise ValueError(
            f"micro-batch {micro_batch} of {size} rows; the plan has {plan.micro_batches} of {plan.micro_batch_size}"
        )
    if len(stage.group) == 1 or stage.sharing == "turns":
        holder = turns(stage, micro_batch + 1)[-1]
        return (Part(holder, 0, size),) if size else ()
    total = sum(member.share for member in stage.group)
    parts, cumulative, start = [], 0, 0
    for member in stage.group:
        cumulative += member.share
        stop = size * cumulative // total
        if stop > start:
            parts.append(Part(member.device, start, stop))
        start = stop
    return tuple(parts)


def routes(source: Sequence[Part], target: Sequence[Part]) -> tuple[Route, ...]:
    """Every overlap of the two partitions of the same rows, in row order."""
    if _size(source) != _size(target):
        raise ValueError(f"routes between {_size(source)} and {_size(target)} rows")
    found, s, t = [], 0, 0
    while s < len(source) and t < len(target):
        start, stop = max(source[s].start, target[t].start), min(source[s].stop, target[t].stop)
        found.append(Route(source[s].device, target[t].device, start, stop))
        s, t = s + (source[s].stop == stop), t + (target[t].stop == stop)
    return tuple(found)


def _size(parts: Sequence[Part]) -> int:
    """Rows that the parts cover, which must follow on each other from row 0."""
    end = 0
    for part in parts:
        if part.start != end or part.stop <= end:
            raise ValueError(f"part {part} does not start at row {end}")
        end = part.stop
    return end

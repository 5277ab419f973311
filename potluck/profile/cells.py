"""Which cells of a profile are measured, in which order, and what stands in those that time did not allow."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from potluck.types import BlockProfile, Timing

Cell = tuple[int, int]  # block, rows


class BlockSize(NamedTuple):
    """What is known of a block that was not measured."""

    work: float  # its time goes by that
    trainable_bytes: int  # and its update by these: frozen parameters have none
    has_backward: bool  # else its backward takes no time, and it keeps nothing


def row_counts(micro_batch: int) -> tuple[int, ...]:
    """Micro-batch sizes to measure, the most important first: the job's own, then what shares of it may be."""
    wanted = [micro_batch, micro_batch // 2, 2, 2 * micro_batch, micro_batch // 4]
    return tuple(dict.fromkeys(rows for rows in wanted if rows >= min(2, micro_batch)))


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the middle half of some values."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def cell_order(blocks: Sequence[int], rows: Sequence[int], size: Callable[[int], float]) -> list[Cell]:
    """Every cell: first all blocks at the first row count, then block by block at the others.

    Large blocks come first, as they matter most; how they scale with the rows tells how the rest does.
    """
    by_size = sorted(blocks, key=lambda block: -size(block))
    first = [(block, rows[0]) for block in by_size]
    return first + [(block, count) for block in by_size for count in rows[1:]]


def fill(
    measured: Mapping[Cell, Timing],
    updates: Mapping[int, float],
    rows: Sequence[int],
    sizes: Sequence[BlockSize],
) -> tuple[BlockProfile, ...]:
    """Every block at every row count; what was not measured is estimated from what was, and says so.

    A block's own other row counts come first, scaled as other blocks of the device scale between the two. A block of
    which nothing is known takes as long as measured ones do, in proportion to its size.
    """
    if not measured:
        raise ValueError("nothing was measured at all")
    known = dict(measured)
    ascending = sorted(rows)
    rates = _rates(measured, sizes)
    for block in range(len(sizes)):
        own = {count: measured[block, count] for count in rows if (block, count) in measured}
        for count in ascending:
            if count not in own:
                known[block, count] = _estimate(own, count, measured, sizes[block], rates)
    per_byte = _ratio([(updates[b], sizes[b].trainable_bytes) for b in updates])
    return tuple(
        BlockProfile(
            timings=tuple(known[block, count] for count in ascending),
            update_s=updates.get(block, per_byte * sizes[block].trainable_bytes),
        )
        for block in range(len(sizes))
    )


_FIGURES = ("forward_s", "backward_s", "kept_bytes", "working_bytes")
_OF_BACKWARD = ("backward_s", "kept_bytes")


def _estimate(
    own: Mapping[int, Timing], rows: int, measured: Mapping[Cell, Timing], size: BlockSize, rates: Mapping[str, float]
) -> Timing:
    if not own:
        values = {what: rates[what] * size.work * rows if _has(size, what) else 0.0 for what in _FIGURES}
    else:
        below = max((r for r in own if r < rows), default=None)
        above = min((r for r in own if r > rows), default=None)
        if below is not None and above is not None:
            part = (rows - below) / (above - below)
            values = {w: (1 - part) * getattr(own[below], w) + part * getattr(own[above], w) for w in _FIGURES}
        else:
            nearest = min(own, key=lambda known: abs(known - rows))
            scale = _scale(measured, nearest, rows)
            memory = rows / nearest
            factors = dict(zip(_FIGURES, (scale, scale, memory, memory), strict=True))
            values = {what: factors[what] * getattr(own[nearest], what) for what in _FIGURES}
    return Timing(
        rows=rows,
        forward_s=values["forward_s"],
        backward_s=values["backward_s"],
        kept_bytes=round(values["kept_bytes"]),
        working_bytes=round(values["working_bytes"]),
        measured=False,
    )


def _scale(measured: Mapping[Cell, Timing], given: int, wanted: int) -> float:
    """How much longer other blocks take at one row count than at another; in proportion where no block says."""
    ratios = [
        step_s(measured[block, wanted]) / step_s(cell)
        for (block, rows), cell in measured.items()
        if rows == given and (block, wanted) in measured and step_s(cell) > 0
    ]
    return statistics.median(ratios) if ratios else wanted / given


def _has(size: BlockSize, what: str) -> bool:
    return size.has_backward or what not in _OF_BACKWARD


def _rates(measured: Mapping[Cell, Timing], sizes: Sequence[BlockSize]) -> dict[str, float]:
    """Of each figure, how much measured blocks that have it have per row and unit of work."""

    def rate(what: str) -> float:
        having = [(block, rows) for block, rows in measured if _has(sizes[block], what)]
        return _ratio([(getattr(measured[block, rows], what), sizes[block].work * rows) for block, rows in having])

    return {what: rate(what) for what in _FIGURES}


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    below = sum(size for _, size in pairs)
    return sum(value for value, _ in pairs) / below if below > 0 else 0.0


def step_s(cell: Timing) -> float:
    """Seconds of a forward and a backward pass."""
    return cell.forward_s + cell.backward_s


def only(profile: BlockProfile, rows: int) -> Timing:
    """The cell of a block at a row count it has."""
    return next(cell for cell in profile.timings if cell.rows == rows)


def scaled(profile: BlockProfile, factor: float) -> BlockProfile:
    """The block on a device that takes `factor` times as long; memory is the same."""
    timings = tuple(
        msgspec.structs.replace(t, forward_s=t.forward_s * factor, backward_s=t.backward_s * factor)
        for t in profile.timings
    )
    return msgspec.structs.replace(profile, timings=timings, update_s=profile.update_s * factor)

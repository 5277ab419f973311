"""Plans one step away from a given one: a cut moved, a depth changed, a recomputation dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from potluck.plan.cost.round_time import Shape

_FEW_CUTS = 4  # more than two are shifted together only where there are not more


def shifted_cuts(ends: Sequence[int]) -> Iterable[list[int]]:
    """The cuts with one of them shifted a little, or several neighbours together by one block."""
    inner = len(ends) - 1
    moves = [(p, p + 1, shift) for p in range(inner) for shift in (-2, -1, 1, 2)]
    longest = inner if inner <= _FEW_CUTS else 2
    runs = [(p, q) for p in range(inner) for q in range(p + 2, min(p + longest, inner) + 1)]
    moves += [(p, q, shift) for p, q in runs for shift in (-1, 1)]
    for start, stop, shift in moves:
        moved = [end + shift if start <= p < stop else end for p, end in enumerate(ends)]
        if all(a < b for a, b in pairwise([0, *moved])):
            yield moved


def other_depths(shape: Shape, most: Sequence[int]) -> Iterable[Shape]:
    """The shape with one depth changed, or without one recomputation."""
    count = len(shape.depths)
    for p in range(count):
        for depth in range(count - p, most[p] + 1):
            depths = (*shape.depths[:p], depth, *shape.depths[p + 1 :])
            if depth != shape.depths[p] and all(a >= b for a, b in pairwise(depths)):
                yield Shape(shape.stages, depths, shape.recompute)
        if shape.recompute[p]:
            yield Shape(shape.stages, shape.depths, (*shape.recompute[:p], False, *shape.recompute[p + 1 :]))


def ranges(ends: Sequence[int]) -> list[tuple[int, int]]:
    """The blocks of each stage, from where they end."""
    return list(zip([0, *ends[:-1]], ends, strict=True))

"""The best plan of all, by trying every one: contiguous cuts × groupings × orders × depths. Not the search's code."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np

from potluck.plan.cost import CostModel, Line, Shape

_BATCH = 20_000


def every_shape(devices: tuple[str, ...], blocks: int) -> Iterator[Shape]:
    """Every assignment of devices to stages (or to none), every way to cut, every depth the rules allow."""
    for stages in range(1, min(len(devices), blocks) + 1):
        depth_choices = list(_depths(stages))
        cut_choices = list(combinations(range(1, blocks), stages - 1))
        for homes in product(range(stages + 1), repeat=len(devices)):
            groups = tuple(tuple(d for d, home in zip(devices, homes, strict=True) if home == p) for p in range(stages))
            if not all(groups):
                continue
            for cuts in cut_choices:
                ends = (*cuts, blocks)
                spans = tuple(zip((0, *cuts), ends, strict=True))
                for depths in depth_choices:
                    yield Shape(tuple(zip(spans, groups, strict=True)), depths, (False,) * stages)


def _depths(stages: int) -> Iterator[tuple[int, ...]]:
    """From P − p to 2 (P − p) − 1, never deeper than the stage before."""
    for depths in product(*(range(stages - p, 2 * (stages - p)) for p in range(stages))):
        if all(a >= b for a, b in pairwise(depths)):
            yield depths


def best_of_all(cost: CostModel) -> tuple[float, Line | None]:
    """Seconds and stations of the fastest plan that fits, by the cost model."""
    best, winner = float("inf"), None
    for lines in _batches(cost):
        seconds = cost.seconds(lines)
        place = int(np.argmin(seconds))
        if seconds[place] < best:
            best, winner = float(seconds[place]), lines[place]
    return best, winner


def all_that_fit(cost: CostModel) -> Iterator[Line]:
    """Every plan that fits."""
    for lines in _batches(cost):
        yield from lines


def _batches(cost: CostModel) -> Iterator[list[Line]]:
    lines: list[Line] = []
    for shape in every_shape(tuple(cost.tables.devices), len(cost.facts.blocks)):
        line = cost.line(shape)
        if line is not None:
            lines.append(line)
        if len(lines) >= _BATCH:
            yield lines
            lines = []
    if lines:
        yield lines

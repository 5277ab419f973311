"""The best plan of all, by trying every one: contiguous cuts × groupings × orders × depths. Not the search's code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product

import numpy as np

from potluck.plan.cost.edges import StagePair
from potluck.plan.cost.round_time import CostModel, Shape, StationLine

_BATCH = 1_000  # plans judged at once


def every_shape(devices: tuple[str, ...], blocks: int) -> Iterator[Shape]:
    """Every assignment of devices to stages (or to none), every way to cut, every depth the rules allow."""
    for stages in _splits(devices, blocks):
        for depths in _depths([_depth_range(len(stages), p) for p in range(len(stages))]):
            yield Shape(stages, depths, (False,) * len(stages))


def _splits(devices: tuple[str, ...], blocks: int) -> Iterator[tuple[tuple[StagePair, tuple[str, ...]], ...]]:
    for stages in range(1, min(len(devices), blocks) + 1):
        cut_choices = list(combinations(range(1, blocks), stages - 1))
        for homes in product(range(stages + 1), repeat=len(devices)):
            groups = tuple(tuple(d for d, home in zip(devices, homes, strict=True) if home == p) for p in range(stages))
            if all(groups):
                for cuts in cut_choices:
                    yield tuple(zip(zip((0, *cuts), (*cuts, blocks), strict=True), groups, strict=True))


def _depth_range(stages: int, p: int) -> range:
    """From P − p to 2 (P − p) − 1."""
    return range(stages - p, 2 * (stages - p))


def _depths(choices: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """One depth for each stage, never deeper than the stage before."""
    for depths in product(*choices):
        if all(a >= b for a, b in pairwise(depths)):
            yield depths


def best_of_all(cost: CostModel) -> tuple[float, StationLine | None]:
    """Seconds and stations of the fastest plan that fits, by the cost model.

    A plan is passed over when its busiest device alone computes for longer than the best plan so far takes.
    """
    best, winner = float("inf"), None
    busy: dict[int, float] = {}  # of a station; the cost model keeps all of them
    lines: list[StationLine] = []

    def judge() -> None:
        nonlocal best, winner
        seconds = cost.seconds(lines)
        place = int(np.argmin(seconds))
        if seconds[place] < best:
            best, winner = float(seconds[place]), lines[place]
        lines.clear()

    def quick(blocks: StagePair, devices: tuple[str, ...], depth: int) -> bool:
        station = cost.stations.best(blocks, devices, depth)
        if station is None:
            return False
        if id(station) not in busy:
            busy[id(station)] = station.busy_s * cost.micro_batches
        return busy[id(station)] < best

    for stages in _splits(tuple(cost.tables.devices), len(cost.facts.blocks)):
        choices = [[k for k in _depth_range(len(stages), p) if quick(*stage, k)] for p, stage in enumerate(stages)]
        for depths in _depths(choices):
            line = cost.line(Shape.of(stages, depths))
            if line is not None:
                lines.append(line)
        if len(lines) >= _BATCH:
            judge()
    if lines:
        judge()
    return best, winner


def all_that_fit(cost: CostModel) -> Iterator[StationLine]:
    """Every plan that fits."""
    for shape in every_shape(tuple(cost.tables.devices), len(cost.facts.blocks)):
        line = cost.line(shape)
        if line is not None:
            yield line

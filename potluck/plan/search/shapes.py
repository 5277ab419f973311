"""Shapes that are worth judging: cuts with the depths that memory allows, and everything one step from a shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from potluck.plan.cost.round_time import CostModel, Shape
from potluck.plan.search.neighbours import other_depths, ranges, shifted_cuts
from potluck.plan.search.sequences import Groups


class Shapes:
    """Of one cost model. `plain` ones recompute nothing and have the usual depths; with few devices there are more."""

    def __init__(self, cost: CostModel, *, few: bool, plain: bool) -> None:
        self._cost, self._few, self._plain = cost, few, plain

    def around(self, shape: Shape) -> Iterable[Shape]:
        """Everything one step away; shifted cuts also with the depths that suit them."""
        groups = tuple(devices for _, devices in shape.stages)
        for ends in shifted_cuts([stop for (_, stop), _ in shape.stages]):
            yield Shape(tuple(zip(ranges(ends), groups, strict=True)), shape.depths, shape.recompute)
            yield from self.of(groups, ends)
        yield from other_depths(shape, [self._most_deep(shape.stages, p) for p in range(len(groups))])

    def of(self, groups: Groups, cuts: Sequence[int]) -> Iterable[Shape]:
        """The cuts with the depths that memory allows: deepest, shallowest; recomputing if nothing else fits."""
        stages = tuple(zip(ranges(cuts), groups, strict=True))
        shallow = Shape.of(stages, range(len(stages), 0, -1))
        deep = self._deepest(stages, shallow.recompute)
        if deep is None:
            again = None if self._plain else self._recomputing(stages)
            if again is not None:
                yield from self._fitting(again)
            return
        yield from self._fitting(deep)
        count = len(stages)
        gentle = tuple(min(k, count - p + 1) for p, k in enumerate(deep.depths))  # one more than the shallowest
        yield Shape(stages, gentle, deep.recompute)
        if self._few:
            yield shallow

    def _fitting(self, shape: Shape) -> Iterable[Shape]:
        """The shape, or if what waits between stages of so different depths does not fit, gentler ones."""
        while self._cost.line(shape) is None:
            count, depths = len(shape.depths), shape.depths
            drops = [p for p in range(count - 1) if depths[p] > max(count - p, depths[p + 1])]
            if not drops:
                return
            p = max(drops, key=lambda p: depths[p] - depths[p + 1])
            shape = Shape(shape.stages, (*depths[:p], depths[p] - 1, *depths[p + 1 :]), shape.recompute)
        yield shape

    def _deepest(
        self, stages: tuple[tuple[tuple[int, int], tuple[str, ...]], ...], again: tuple[bool, ...]
    ) -> Shape | None:
        """Every stage as deep as its memory allows, but less deep than the one before: equals starve each other."""
        depths: list[int] = []
        count = len(stages)
        for p, (blocks, devices) in enumerate(stages):
            most = min(self._most_deep(stages, p), depths[-1] - 1 if depths else self._cost.micro_batches + count)
            fitting = [
                k for k in range(most, count - p - 1, -1) if self._cost.stations.best(blocks, devices, k, again[p])
            ]
            if not fitting:
                return None
            depths.append(fitting[0])
        return Shape(stages, tuple(depths), again)

    def _most_deep(self, stages: Sequence[tuple[tuple[int, int], tuple[str, ...]]], p: int) -> int:
        """Twice the stages to the end less one, and what keeps further members of groups by turns busy."""
        usual = 2 * (len(stages) - p) - 1
        more = sum(len(devices) - 1 for _, devices in stages[p:])
        return usual if self._plain else max(usual, min(usual + more, self._cost.micro_batches))

    def _recomputing(self, stages: tuple[tuple[tuple[int, int], tuple[str, ...]], ...]) -> Shape | None:
        """Recomputation in just those stages that do not fit otherwise."""
        count = len(stages)
        again = tuple(
            self._cost.stations.best(blocks, devices, count - p) is None for p, (blocks, devices) in enumerate(stages)
        )
        return self._deepest(stages, again) if any(again) else None

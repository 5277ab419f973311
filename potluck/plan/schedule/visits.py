"""The work of all stages in one list, in which whatever a piece waits for stands before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from potluck.errors import PlanError
from potluck.plan.schedule.schedules import Pass, Schedule, Way, order_of

Visit = tuple[int, Way, int]  # stage, work, micro-batch


@lru_cache(maxsize=128)
def visits(schedule: Schedule, depths: tuple[int, ...], micro_batches: int) -> tuple[Visit, ...]:
    """A round of stages with these depths; PlanError if it cannot be worked through.

    In each tick every stage runs one backward, later stages first, and then one forward, earlier ones first. No
    backward comes before the tick of its stage's depth. So messages of 1F1B get their turn on a line in an order that
    is nearly the one of time.
    """
    orders = [order_of(schedule, depth, micro_batches) for depth in depths]
    progress, found, tick = _Progress(orders), list[Visit](), 0
    while len(found) < sum(map(len, orders)):
        some = [v for p in reversed(range(len(depths))) if tick >= depths[p] for v in progress.step(p, "backward")]
        some += [v for p in range(len(depths)) for v in progress.step(p, "forward")]
        if not some and tick >= max(depths):
            raise PlanError(
                f"plan: schedule: {schedule.name!a} deadlocks with depths {', '.join(map(str, depths))}: "
                f"{progress.stuck()}; change the depths, or correct its order"
            )
        found += some
        tick += 1
    return tuple(found)


class _Progress:
    """How far each stage has come in its order."""

    def __init__(self, orders: Sequence[Sequence[Pass]]) -> None:
        self._orders, self._at = orders, [0] * len(orders)
        self._done: set[Visit] = set()

    def step(self, p: int, way: Way) -> Iterator[Visit]:
        """The next work of a stage, if it goes that way and what it waits for is done."""
        order, at = self._orders[p], self._at[p]
        if at < len(order) and order[at][0] == way and self._may(p, way, order[at][1]):
            visit = (p, way, order[at][1])
            self._done.add(visit)
            self._at[p] += 1
            yield visit

    def _may(self, p: int, way: Way, j: int) -> bool:
        if way == "forward":
            return p == 0 or (p - 1, way, j) in self._done
        return (p, "forward", j) in self._done and (p + 1 == len(self._orders) or (p + 1, way, j) in self._done)

    def stuck(self) -> str:
        """The first stage that has work left, in words."""
        p = next(p for p, order in enumerate(self._orders) if self._at[p] < len(order))
        way, j = self._orders[p][self._at[p]]
        return f"stage {p} waits for ever to run micro-batch {j} {way}"

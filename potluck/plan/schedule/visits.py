"""The work of all stages in one list, in which whatever a piece waits for stands before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

from potluck.errors import PlanError
from potluck.plan.schedule.schedules import Pass, Schedule, Work

Visit = tuple[int, Pass, int]  # stage, work, micro-batch


@lru_cache(maxsize=128)
def visits(schedule: Schedule, depths: tuple[int, ...], micro_batches: int) -> tuple[Visit, ...]:
    """A round of stages with these depths; PlanError if it cannot be worked through."""
    orders = [schedule.order(depth, micro_batches) for depth in depths]
    for depth, order in zip(depths, orders, strict=True):
        _check(schedule, order, depth, micro_batches)
    return tuple(_walk(schedule, orders, depths))


def _check(schedule: Schedule, order: Sequence[Work], depth: int, micro_batches: int) -> None:
    wanted = {(work, j) for work in ("forward", "backward") for j in range(micro_batches)}
    if len(order) != len(wanted) or set(order) != wanted:
        where = f"in a stage of depth {depth} with {micro_batches} micro-batches"
        raise PlanError(f"plan: schedule: {schedule.name!a} forgets or repeats work {where}; correct its order")


def _walk(schedule: Schedule, orders: Sequence[Sequence[Work]], depths: Sequence[int]) -> Iterator[Visit]:
    """In each tick every stage runs one backward, later stages first, and one forward, earlier ones first.

    No backward comes before the tick of its stage's depth. So messages of 1F1B get their turn on a line in an order
    that is nearly the one of time.
    """
    last, left = len(orders) - 1, sum(map(len, orders))
    at = [0] * len(orders)
    done: set[Visit] = set()

    def ready(p: int, wanted: Pass) -> Visit | None:
        if at[p] == len(orders[p]) or orders[p][at[p]][0] != wanted:
            return None
        j = orders[p][at[p]][1]
        if wanted == "forward":
            fine = p == 0 or (p - 1, "forward", j) in done
        else:
            fine = (p, "forward", j) in done and (p == last or (p + 1, "backward", j) in done)
        return (p, wanted, j) if fine else None

    for tick in count():
        if len(done) == left:
            return
        before = len(done)
        for p, work in _tick(len(orders)):
            if (work == "forward" or tick >= depths[p]) and (visit := ready(p, work)) is not None:
                done.add(visit)
                at[p] += 1
                yield visit
        if len(done) == before and tick >= max(depths):
            stuck = next(p for p in range(len(orders)) if at[p] < len(orders[p]))
            work, j = orders[stuck][at[stuck]]
            raise PlanError(
                f"plan: schedule: {schedule.name!a} deadlocks with depths {', '.join(map(str, depths))}: stage {stuck} "
                f"waits for ever to run micro-batch {j} {work}; change the depths, or correct its order"
            )


def _tick(stages: int) -> Iterator[tuple[int, Pass]]:
    for p in reversed(range(stages)):
        yield p, "backward"
    for p in range(stages):
        yield p, "forward"

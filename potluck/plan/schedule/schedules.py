"""What a schedule is. All that others want to know of an order, they ask the schedule that the plan names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import ClassVar, Literal

from potluck.advice import one_line
from potluck.errors import PlanError

Way = Literal["forward", "backward"]
Pass = tuple[Way, int]  # with its micro-batch


class Schedule(ABC):
    """In which order stages work. A depth is what the plan says of a stage, usually the number of stages to the end.

    Only `order` has to be given: the rest is right for whatever runs each round to its end before the next begins.
    With a `staleness` of 1, the next round's forwards fill the end of a round (`plan/schedule/segments.py`).
    """

    name: ClassVar[str]  # in plans
    staleness: ClassVar[int] = 0  # steps between the weights that a gradient is of and those that it changes

    @property
    def flushes(self) -> bool:
        """Whether a round ends with nothing in flight: the next one needs the weights that it makes."""
        return self.staleness == 0

    @abstractmethod
    def order(self, depth: int, micro_batches: int) -> Iterable[Pass]:
        """What a stage does in a round: each micro-batch once forward, and later once backward."""

    def in_flight(self, depth: int, micro_batches: int) -> int:
        """Most micro-batches that a stage has run forward and not yet backward."""
        return _most_open(self, depth, micro_batches)

    def versions(self, depth: int) -> int:
        """How many versions of its weights a stage holds at once."""
        return 1 + self.staleness

    def backlog(self, earlier: int, later: int, micro_batches: int) -> int:
        """Micro-batches that may wait between stages of two depths, in each direction, for neither to block the other.

        At least 2, so that sending and receiving overlap compute. What waits in either direction is in flight in the
        earlier stage, so there is never more of it.
        """
        return max(2, self.in_flight(earlier, micro_batches))

    def wrong_depth(self, depths: Sequence[int], stage: int, micro_batches: int) -> str:
        """What is wrong with the depth of a stage and which to give, in words; "" if nothing is."""
        return "" if depths[stage] > 0 else f"{depths[stage]} is no depth; give at least 1, or leave it out"


@lru_cache(maxsize=128)
def order_of(schedule: Schedule, depth: int, micro_batches: int) -> tuple[Pass, ...]:
    """What a stage does in a round; PlanError with the schedule's name if that is no order of the whole work."""
    wanted = {(way, j) for way in ("forward", "backward") for j in range(micro_batches)}
    try:  # somebody else may have written it
        found = tuple(islice(schedule.order(depth, micro_batches), len(wanted) + 1))
        strange = next((work for work in found if work not in wanted), None)
    except Exception as error:
        raise _wrong_order(schedule, f"gives no order ({one_line(error)})", depth, micro_batches) from error
    if strange is not None:
        raise _wrong_order(schedule, f"has {ascii(strange)[:80]} in its order", depth, micro_batches)
    if len(found) != len(wanted) or set(found) != wanted:
        raise _wrong_order(schedule, "forgets or repeats work", depth, micro_batches)
    return found


def _wrong_order(schedule: Schedule, what: str, depth: int, micro_batches: int) -> PlanError:
    where = f"in a stage of depth {depth} with {micro_batches} micro-batches"
    right = f'("forward", j) and ("backward", j) once for each j from 0 to {micro_batches - 1}'
    return PlanError(f"plan: schedule: {schedule.name!a} {what} {where}; correct its order: {right}")


@lru_cache(maxsize=4096)
def _most_open(schedule: Schedule, depth: int, micro_batches: int) -> int:
    changes = (1 if work == "forward" else -1 for work, _ in order_of(schedule, depth, micro_batches))
    return max(accumulate(changes), default=0)

"""What a schedule is. All that others want to know of an order, they ask the schedule that the plan names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Literal

Way = Literal["forward", "backward"]
Pass = tuple[Way, int]  # with its micro-batch


class Schedule(ABC):
    """In which order stages work. A depth is what the plan says of a stage, usually the number of stages to the end.

    Only `order` has to be given: the rest is right for whatever runs each round to its end before the next begins.
    """

    name: ClassVar[str]  # in plans
    flushes: ClassVar[bool] = True  # whether a round ends with nothing in flight

    @abstractmethod
    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        """What a stage does in a round: each micro-batch once forward, and later once backward."""

    def in_flight(self, depth: int, micro_batches: int) -> int:
        """Most micro-batches that a stage has run forward and not yet backward."""
        return _most_open(self, depth, micro_batches)

    def versions(self, depth: int) -> int:
        """How many versions of its weights a stage holds at once."""
        return 1

    def backlog(self, earlier: int, later: int, micro_batches: int) -> int:
        """Micro-batches that may wait between stages of two depths, in each direction, for neither to block the other.

        At least 2, so that sending and receiving overlap compute. What waits in either direction is in flight in the
        earlier stage, so there is never more of it.
        """
        return max(2, self.in_flight(earlier, micro_batches))

    def wrong_depth(self, depths: Sequence[int], stage: int, micro_batches: int) -> str:
        """What is wrong with the depth of a stage and which to give, in words; "" if nothing is."""
        return "" if depths[stage] > 0 else f"{depths[stage]} is no depth; give at least 1, or leave it out"


@lru_cache(maxsize=4096)
def _most_open(schedule: Schedule, depth: int, micro_batches: int) -> int:
    changes = (1 if work == "forward" else -1 for work, _ in schedule.order(depth, micro_batches))
    return max(accumulate(changes), default=0)

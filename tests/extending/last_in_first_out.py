"""A schedule that goes backwards from the last micro-batch to the first: gradients are added in another order."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.plan.schedule.known_schedules import register
from potluck.plan.schedule.schedules import Pass, Schedule


class LastInFirstOut(Schedule):
    """Everything else is as for any schedule."""

    name = "last-in-first-out"

    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        """All forwards, then their backwards, the newest first."""
        every = range(micro_batches)
        return [*(("forward", j) for j in every), *(("backward", j) for j in reversed(every))]


register(LastInFirstOut())

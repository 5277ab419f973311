"""A schedule of one's own, in one file: fill-drain, as in GPipe. All forwards of a round, then all its backwards."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.plan.schedule.known_schedules import register
from potluck.plan.schedule.schedules import Pass, Schedule


class FillDrain(Schedule):
    """Every micro-batch is in flight at once, however deep a stage is."""

    name = "fill-drain"

    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        """Backwards in the order of micro-batches, so gradients are added as one device adds them."""
        every = range(micro_batches)
        return [*(("forward", j) for j in every), *(("backward", j) for j in every)]

    def backlog(self, earlier: int, later: int, micro_batches: int) -> int:
        """The least, as no stage ever waits for the one that waits for it: first all send forward, then all back."""
        return 2


register(FillDrain())

"""1F1B with depth: a stage of depth K runs K forwards, then one backward and one forward in turn, then what is left."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.plan.schedule.schedules import Pass, Schedule
from potluck.types import DEFAULT_SCHEDULE


class OneForwardOneBackward(Schedule):
    """The schedule of plans that name none."""

    name = DEFAULT_SCHEDULE

    def order(self, depth: int, micro_batches: int) -> Sequence[Pass]:
        """K forwards, one backward and one forward in turn, the backwards that are left."""
        listed: list[Pass] = []
        for j in range(micro_batches + depth):
            if j >= depth and j - depth < micro_batches:
                listed.append(("backward", j - depth))
            if j < micro_batches:
                listed.append(("forward", j))
        return listed

    def backlog(self, earlier: int, later: int, micro_batches: int) -> int:
        """Exactly 2 between neighbours of default depth.

        The earlier stage runs its K forwards before it takes the first gradient, and the later one meanwhile sends
        gradients: with room for less than half the difference of their depths, both could end in a send that waits
        for the other. Room for the difference and one more is never exhausted by gradients.
        """
        return max(2, earlier - later + 1)

    def wrong_depth(self, depths: Sequence[int], stage: int, micro_batches: int) -> str:
        """With less than the number of stages to the end, a stage could never be kept busy."""
        depth, least = depths[stage], len(depths) - stage
        most = max(2 * least - 1, micro_batches)  # all forwards first
        if not least <= depth <= most:
            allowed = f"{least} to {most}" if least < most else str(least)
            return f"{depth} is outside what {least} stages to the end can use; give {allowed}"
        if stage and depth > depths[stage - 1]:
            before = depths[stage - 1]
            why = f"the stage before sends only {before} micro-batches before it waits for a gradient"
            return f"{depth} makes the pipeline deadlock, as {why}; give at most {before}"
        return ""

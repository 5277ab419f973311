"""1F1B that does not stop between rounds: gradients are one step late, and no stage waits for a round's end."""

from __future__ import annotations

from typing import ClassVar

from potluck.plan.schedule.one_f_one_b import OneForwardOneBackward
from potluck.types import STEADY_SCHEDULE


class Steady(OneForwardOneBackward):
    """A stage of depth K has K micro-batches under way, of two rounds where one ends and the next begins."""

    name = STEADY_SCHEDULE
    staleness: ClassVar[int] = 1

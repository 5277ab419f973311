"""Local SGD: everybody trains the same number of steps, then all wait for the last."""

from __future__ import annotations

from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_values import STEPS_A_PERIOD, counted
from potluck.types import Pace


class Lockstep(Policy):
    """Everybody trains the same number of steps, then all wait for the last; with one step it is BSP."""

    waits = True

    def __init__(self, steps: int = STEPS_A_PERIOD) -> None:
        super().__init__()
        if steps < 1:
            raise ValueError(f"a worker trains at least one step before it pushes, not {steps}")
        self.steps = steps

    def may_go(self, worker: str) -> bool:
        return self.workers[worker].pushes <= self.fewest

    def pace(self, worker: str, now_s: float) -> Pace:
        return Pace(f"{self.steps} steps each, then everybody waits for the last", steps=self.steps)


FACTORY = counted(lambda steps, period_s: Lockstep(steps), "steps")

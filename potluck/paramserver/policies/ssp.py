"""Stale-synchronous: nobody is more than so many pushes ahead of the last."""

from __future__ import annotations

from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_values import STEPS_A_PERIOD, counted
from potluck.types import Pace


class Ssp(Policy):
    """Stale-synchronous: nobody is more than so many pushes ahead of the last."""

    waits = True

    def __init__(self, ahead: int = STEPS_A_PERIOD) -> None:
        super().__init__()
        if ahead < 0:
            raise ValueError(f"a worker is at least 0 pushes ahead of the last, not {ahead}")
        self.ahead = ahead

    def may_go(self, worker: str) -> bool:
        return self.workers[worker].pushes - self.fewest <= self.ahead

    def pace(self, worker: str, now_s: float) -> Pace:
        return Pace(f"after every step, at most {self.ahead} ahead of the last", steps=1)


FACTORY = counted(lambda ahead, period_s: Ssp(ahead), "pushes ahead of the last", least=0)

"""A push policy of one's own: a push after every N steps, and nobody waits. A push that comes late counts for less."""

from __future__ import annotations

from potluck.paramserver.events import Report
from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_choice import register
from potluck.paramserver.policy_values import counted
from potluck.types import Pace


class EverySoOften(Policy):
    """Workers push at their own speed."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def pace(self, worker: str, now_s: float) -> Pace:
        """When a worker pushes next."""
        return Pace(f"after every {self.steps} steps, whatever the others do", steps=self.steps)

    def scale(self, report: Report) -> float:
        """How much a push counts: half of its part if every other worker has pushed once more than usual meanwhile."""
        others = max(1, len(self.workers) - 1)
        late = max(0, report.staleness - others) / others
        return super().scale(report) / (1.0 + late)


# `--sync every-so-often` or `--sync every-so-often:7`
register("every-so-often", counted(lambda steps, period_s: EverySoOften(steps), "steps between two pushes", usual=10))

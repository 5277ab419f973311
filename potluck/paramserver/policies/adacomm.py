"""Adaptive local SGD: fewer steps between pushes as the loss falls (ADACOMM)."""

from __future__ import annotations

import math

from potluck.paramserver.events import Answer
from potluck.paramserver.policies.local import Lockstep
from potluck.paramserver.policy_values import counted

_LEAST_ROUNDS = 5  # that all push between two decisions: a loss that rests on fewer is mostly chance


class AdaComm(Lockstep):
    """steps = ceil(first steps × root of loss over first loss) at every check; halved where that is no fewer."""

    def __init__(self, steps: int = 40, check_s: float = 60.0) -> None:
        super().__init__(steps)
        self.check_s = check_s
        self._first_steps, self._first_loss = steps, math.nan
        self._rounds_seen = 0

    def checked(self, loss: float, now_s: float) -> Answer:
        if self.fewest < self._rounds_seen + _LEAST_ROUNDS:
            return Answer(reason=f"{self.steps} steps as before: too few pushes since to go by")
        self._rounds_seen = self.fewest
        if not math.isfinite(loss) or loss <= 0:
            return Answer(reason=f"{self.steps} steps as before: a loss of {loss} says nothing")
        if math.isnan(self._first_loss):
            self._first_loss = loss
            return Answer(reason=f"{self.steps} steps to begin with, at a loss of {loss:.3g}")
        before = self.steps
        found = math.ceil(self._first_steps * math.sqrt(loss / self._first_loss))
        self.steps = found if found < before else max(1, math.ceil(before / 2))
        paces = {name: self.pace(name, now_s) for name in self.workers}
        return Answer(paces=paces, reason=f"{self.steps} steps instead of {before}: the loss is {loss:.3g}")


FACTORY = counted(AdaComm, "steps to begin with")

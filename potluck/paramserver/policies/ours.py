"""Ours: ADSP with a search that a noisy loss does not mislead, and pushes that count by what they are worth."""

from __future__ import annotations

import math

from potluck.paramserver.curve import Reward
from potluck.paramserver.events import Report
from potluck.paramserver.policies.adsp import Adsp
from potluck.paramserver.policy_values import timed

_FEW = 2  # pushes in a check period to begin with: twenty steps of the slowest worker between two, by default
_FEW_STEPS = 5  # of the slowest worker between two pushes, at least: fewer are mostly sending
_DOUBTS = 2  # rates in a row that may look worse by chance


class Ours(Adsp):
    """ADSP with more losses a period, a fit that outliers do not sway, pushes that count by data and by age, and
    momentum at the server.

    The search begins with a few pushes and doubles them; where more is worse from the start, it tries fewer. A rate
    that looks worse by less than the fit is sure of does not end the search at once; one that is worse beyond doubt
    does.
    """

    robust = True
    outer_momentum = 0.2
    losses_a_period = 6

    def scale(self, report: Report) -> float:
        """A worker counts by the size of its data set, and less if each other has pushed more than once meanwhile."""
        part = self.workers[report.worker].samples / self.samples if self.samples else 1 / len(self.workers)
        late = max(0, report.staleness - (len(self.workers) - 1))
        return part / math.sqrt(1 + late / len(self.workers))

    def _first_rate(self, before: int | None) -> int:
        return before or _FEW

    def _most(self) -> int:
        """At least a few steps of the slowest worker between two pushes, else counts drift apart by whole steps; and
        pushing and pulling, which goes on beside training but not for nothing, takes at most a tenth of the time."""
        slowest_s = max((w.step_s or 0.0 for w in self.workers.values()), default=0.0)
        by_steps = max(1, int(self.period_s / _FEW_STEPS / slowest_s)) if slowest_s > 0 else 10**6
        return min(max(1, super()._most() // 5), by_steps)

    def _following(self, rate: int, found: Reward | None, before: tuple[int, Reward] | None) -> int | None:
        best = self._search.best
        least, most = min(self._search.tried), max(self._search.tried)
        doubtful = (
            found is None or before is None or (self._search.worse < _DOUBTS and not before[1].better_than(found))
        )
        if best is not None and best[0] == least and rate == most and not doubtful:
            return least // 2  # more was worse: is fewer better?
        if rate == least and rate != most:
            return rate // 2 if best is not None and best[0] == rate else None
        return rate * 2 if doubtful or (best is not None and best[0] == rate) else None


FACTORY = timed(Ours)

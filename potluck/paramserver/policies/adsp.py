"""ADSP: every worker trains at its own speed and all push equally often; how often is searched while they train.

At every check, after Γ seconds, all are given the same number of pushes to reach; so who lags behind catches up. A
worker begins a push Γ / pushes seconds after it began the one before (Γ / pushes - overhead after its pull), and trains
on meanwhile: nobody waits. The search begins with one push in a check period and goes on to more as long as the loss
falls faster by it. Faster means: from the loss at which the search began to nine tenths of it in less time. (As
published, the way begins where a rate was taken up, so that the later of two rates is nearer to the goal and looks
better by that alone.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from potluck.paramserver.curve import Reward, reward
from potluck.paramserver.events import Answer
from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_values import timed
from potluck.types import Pace

_GOAL = 0.9  # of the loss at the beginning of a search: what the rewards of different rates are compared by
_JUMP = 1.3  # by which the loss rises before the rate is searched anew: noise makes less of it, as a rule


@dataclass
class _Search:
    """What was found out about rates so far."""

    rate: int = 1  # pushes of a worker in a check period
    best: tuple[int, Reward] | None = None
    first: float = math.nan  # the loss at its beginning
    began_s: float = 0.0
    points: list[tuple[float, float]] = field(default_factory=list)  # time and loss since the rate was taken up
    tried: set[int] = field(default_factory=set)
    worse: int = 0  # rates in a row that promised less than the best
    over: bool = False


class Adsp(Policy):
    """As published: three losses a check period, the first rate that is no better ends the search."""

    robust = False
    losses_a_period = 2  # and the one at its end

    def __init__(self, period_s: float = 60.0, epoch_s: float = 1200.0) -> None:
        """`period_s` is Γ; the rate is searched anew after `epoch_s`."""
        super().__init__()
        if period_s <= 0 or epoch_s < period_s:
            raise ValueError(f"a check period of {period_s} s in an epoch of {epoch_s} s")
        self.period_s, self.epoch_s = period_s, epoch_s
        self.check_s = period_s / self.losses_a_period
        self._search = _Search()
        self._period_began_s, self._target, self._lowest, self._known = -math.inf, 0, math.inf, False

    @property
    def rate(self) -> int:
        """Pushes of every worker in a check period."""
        return self._search.rate

    def pace(self, worker: str, now_s: float) -> Pace:
        mine = self.workers[worker]
        left = self._target - mine.pushes
        rest_s = max(0.0, self._period_began_s + self.period_s - now_s) if self._known else self.period_s
        if not self._known and not mine.pushes:  # the sooner there is a loss, the sooner the search can begin
            wait_s, why = self.period_s / self._first_rate(None), "its first push"
        elif left > 0:
            wait_s, why = rest_s / left, f"{left} to go in {rest_s:.3g} s"
        else:  # not again before the check, so that nobody is two ahead
            wait_s, why = max(self.period_s / self.rate, rest_s), f"its {self.rate} pushes of this period are made"
        mine.due_s = min(mine.due_s, now_s + wait_s)  # a check does not put off what is due already
        # A worker counts from when it began its last push and trains on meanwhile, so its overhead is in this already.
        seconds = max(mine.due_s - mine.pushed_s, mine.step_s or 0.0)
        why += f", {mine.overhead_s:.2g} s of each to push and pull"
        return Pace(why, seconds=seconds)

    def checked(self, loss: float, now_s: float) -> Answer:
        search = self._search
        if not self._known:
            if not math.isfinite(loss) or loss <= 0:
                return Answer(reason=f"1 push in {self.period_s:.3g} s until there is a loss to go by")
            self._known = True
            return self._begin(loss, now_s, "the first loss")
        if math.isfinite(loss):
            search.points.append((now_s - search.began_s, loss))
        if now_s < self._period_began_s + self.period_s * (1 - 1e-9):
            return Answer(reason=f"{search.rate} pushes in {self.period_s:.3g} s, as before")
        if math.isfinite(loss) and loss > _JUMP * self._lowest:
            return self._begin(loss, now_s, f"the loss rose from {self._lowest:.3g} to {loss:.3g}")
        self._lowest = min(self._lowest, loss) if math.isfinite(loss) else self._lowest
        if search.over:
            if now_s - search.began_s >= self.epoch_s and math.isfinite(loss):
                return self._begin(loss, now_s, f"{self.epoch_s:.3g} s are over")
            return self._period(now_s, f"{search.rate} pushes each, as found")
        return self._period(now_s, self._next_rate(now_s))

    def _begin(self, loss: float, now_s: float, why: str) -> Answer:
        """Searches for the best rate."""
        self._lowest = loss
        rate = min(self._first_rate(self._search.rate if self._search.over else None), self._most())
        self._search = _Search(rate=rate, first=loss, began_s=now_s, points=[(0.0, loss)])
        return self._period(now_s, f"search for the best rate, from {rate} in {self.period_s:.3g} s on: {why}")

    def _period(self, now_s: float, reason: str) -> Answer:
        """A check period begins: all get the same number of pushes to reach."""
        self._period_began_s = now_s
        due = min(max(self._target, self.most), self.most + 1)  # a push may arrive just after its period is over
        self._target = due + self._search.rate
        return Answer(paces={name: self.pace(name, now_s) for name in self.workers}, reason=reason)

    def _next_rate(self, now_s: float) -> str:
        """Another rate as long as that helps."""
        search, rate = self._search, self._search.rate
        times, losses = zip(*search.points, strict=True)
        found = reward(times, losses, search.first, _GOAL * search.first, robust=self.robust)
        search.points, search.began_s = [(0.0, losses[-1])], now_s
        words = "no falling course" if found is None else f"reward {found.value:.3g} ± {found.error:.2g}"
        before = search.best
        if found is not None and (before is None or found.value > before[1].value):
            search.best, search.worse = (rate, found), 0
        else:
            search.worse += 1
        search.tried.add(rate)
        following = self._following(rate, found, before)
        if following is not None and following not in search.tried and 1 <= following <= self._most():
            search.rate = following
            return f"{rate} pushes: {words}; try {following}"
        search.rate, search.over = (search.best[0] if search.best else rate), True
        return f"{rate} pushes: {words}; stay with {search.rate}"

    def _first_rate(self, before: int | None) -> int:
        """Where a search begins, given the rate in force."""
        return 1

    def _following(self, rate: int, found: Reward | None, before: tuple[int, Reward] | None) -> int | None:
        """The rate to try next, given what this one promises and what the best one before did; None: enough."""
        return rate + 1 if before is None or (found is not None and found.value > before[1].value) else None

    def _most(self) -> int:
        """Pushes in a period of which half would go into pushing and pulling."""
        slowest_s = max((w.overhead_s for w in self.workers.values()), default=0.0)
        return max(1, int(self.period_s / 2 / slowest_s)) if slowest_s > 0 else 10**6


FACTORY = timed(Adsp)

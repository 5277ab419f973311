"""How often workers push, who waits for whom, and how much a push counts. Pure: the caller brings the time.

A worker trains on its own data, pushes the difference that it made, and pulls the newest weights. Adding a policy is a
small class: `may_go` says whether a worker that has pushed may train on, `pace` when it pushes next, `scale` how much
its push counts (docs/extending.md).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from potluck.paramserver.events import Answer, Report
from potluck.types import Pace


@dataclass
class Worker:
    """What is known of a worker that takes part."""

    samples: int  # of its data set
    pushes: int  # as if it had been here from the start
    overhead_s: float = 0.0
    step_s: float | None = None  # as it said when it came, then as measured between its last two pushes
    pushed_s: float = 0.0  # when it was last let go
    due_s: float = math.inf  # when its next push is due, where that was decided


class Policy:
    """Bookkeeping that all policies share. By itself: nobody waits, everybody pushes after each step."""

    waits = False  # whether a worker stands still from its push until it may go
    check_s: float | None = None  # how often the policy wants to be told the loss
    outer_momentum = 0.0  # of the server's own step

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.samples = 0  # of all of them
        self.fewest, self.most = 0, 0  # pushes of the last of them, and of the first there ever was
        self._having: Counter[int] = Counter()  # how many have pushed so often
        self._waiting: dict[str, None] = {}  # who has pushed and may not go on yet
        self._looked_at = 0  # `fewest` when it was last decided who may go

    # --- what a policy is

    def may_go(self, worker: str) -> bool:
        """Whether a worker that has pushed may train on."""
        return True

    def pace(self, worker: str, now_s: float) -> Pace:
        """When a worker pushes next."""
        return Pace("after every step", steps=1)

    def scale(self, report: Report) -> float:
        """How much a push counts: all together make the mean."""
        return 1.0 / len(self.workers)

    # --- what happens

    def joined(self, worker: str, samples: int, now_s: float, step_s: float | None = None) -> Answer:
        """A worker begins. It counts as having pushed as often as the first of the others: nobody waits for it to
        catch up, and it need not."""
        pushes = self.most
        self.workers[worker] = Worker(samples, pushes, step_s=step_s, pushed_s=now_s)
        self.samples += samples
        self._having[pushes] += 1
        self._look_for_the_last()
        return Answer(paces={worker: self.pace(worker, now_s)}, reason=f"{worker} begins at push {pushes}")

    def left(self, worker: str, now_s: float) -> Answer:
        """A worker is gone; whoever waited for it alone goes on."""
        known = self.workers.pop(worker, None)
        if known is None:
            return Answer(reason=f"{worker} was not here")
        self._waiting.pop(worker, None)
        self.samples -= known.samples
        self._having[known.pushes] -= 1
        self._look_for_the_last()
        return self._let_go(now_s, 0.0, f"{worker} is gone")

    def pushed(self, report: Report, now_s: float) -> Answer:
        """A push has arrived and will be applied, once."""
        worker = self.workers[report.worker]
        self._having[worker.pushes] -= 1
        worker.pushes += 1
        self._having[worker.pushes] += 1
        self.most = max(self.most, worker.pushes)
        self._look_for_the_last()
        self._waiting[report.worker] = None
        worker.overhead_s = report.overhead_s
        if report.steps:
            worker.step_s = (now_s - worker.pushed_s) / report.steps
        reason = f"push {worker.pushes} of {report.worker}"
        return self._let_go(now_s, self.scale(report), reason, report.worker)

    def checked(self, loss: float, now_s: float) -> Answer:
        """The loss of the newest weights on held-out data, or what workers last reported, every `check_s`."""
        return Answer()

    def _let_go(self, now_s: float, scale: float, reason: str, pushed: str | None = None) -> Answer:
        """Who may go: it changes with the last worker's count, and else only for who has just pushed."""
        asked = [pushed] if pushed is not None and self.fewest == self._looked_at else list(self._waiting)
        self._looked_at = self.fewest
        go = tuple(name for name in asked if self.may_go(name))
        for name in go:
            del self._waiting[name]
            self.workers[name].pushed_s, self.workers[name].due_s = now_s, math.inf
        if pushed in self._waiting:
            reason += f"; it waits for those that have pushed {self.fewest} times"
        return Answer(go, {name: self.pace(name, now_s) for name in go}, scale, reason)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Who has pushed and may not go on yet."""
        return tuple(self._waiting)

    def _look_for_the_last(self) -> None:
        if not self.workers:
            self._having.clear()
            return
        while self._having[self.fewest] <= 0:
            del self._having[self.fewest]
            self.fewest += 1

"""How often workers push, who waits for whom, and how much a push counts. Pure: the caller brings the time.

A worker trains on its own data, pushes the difference that it made, and pulls the newest weights. Adding a policy is a
small class: `may_go` says whether a worker that has pushed may train on, `pace` when it pushes next, `scale` how much
its push counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from potluck.paramserver.words import Answer, Pace, Report


@dataclass
class Worker:
    """What is known of a worker that takes part."""

    samples: int  # of its data set
    pushes: int  # as if it had been here from the start
    waiting: bool = False  # has pushed and may not go on yet
    overhead_s: float = 0.0
    step_s: float | None = None  # measured between its last two pushes
    pushed_s: float = 0.0  # when it was last let go


class Policy:
    """Bookkeeping that all policies share. By itself: nobody waits, everybody pushes after each step (ASP)."""

    name = "asp"
    waits = False  # whether a worker stands still from its push until it may go
    check_s: float | None = None  # how often the policy wants to be told the loss

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}

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

    def joined(self, worker: str, samples: int, now_s: float) -> Answer:
        """A worker begins. It counts as having pushed as often as the first of the others: nobody waits for it to
        catch up, and it need not."""
        pushes = max((w.pushes for w in self.workers.values()), default=0)
        self.workers[worker] = Worker(samples, pushes, pushed_s=now_s)
        return Answer(paces={worker: self.pace(worker, now_s)}, reason=f"{worker} begins at push {pushes}")

    def left(self, worker: str, now_s: float) -> Answer:
        """A worker is gone; whoever waited for it alone goes on."""
        self.workers.pop(worker, None)
        return self._let_go(now_s, 0.0, f"{worker} is gone")

    def pushed(self, report: Report, now_s: float) -> Answer:
        """A push has arrived and will be applied, once."""
        worker = self.workers[report.worker]
        worker.pushes += 1
        worker.waiting = True
        worker.overhead_s = report.overhead_s
        if report.steps:
            worker.step_s = (now_s - worker.pushed_s) / report.steps
        return self._let_go(now_s, self.scale(report), f"push {worker.pushes} of {report.worker}")

    def checked(self, loss: float, now_s: float) -> Answer:
        """The loss of the newest weights on held-out data, or what workers last reported, every `check_s`."""
        return Answer()

    def _let_go(self, now_s: float, scale: float, reason: str) -> Answer:
        go = tuple(name for name, w in self.workers.items() if w.waiting and self.may_go(name))
        for name in go:
            self.workers[name].waiting = False
            self.workers[name].pushed_s = now_s
        held = [name for name, w in self.workers.items() if w.waiting]
        if held:
            reason += f"; {', '.join(held)} must wait for {', '.join(self.last())}"
        return Answer(go, {name: self.pace(name, now_s) for name in go}, scale, reason)

    def last(self) -> list[str]:
        """Those who have pushed least often."""
        fewest = min(w.pushes for w in self.workers.values())
        return [name for name, w in self.workers.items() if w.pushes == fewest]


class Lockstep(Policy):
    """Everybody trains the same number of steps, then all wait for the last (local SGD); with one step it is BSP."""

    name = "local"
    waits = True

    def __init__(self, steps: int = 40) -> None:
        super().__init__()
        if steps < 1:
            raise ValueError(f"a worker trains at least one step before it pushes, not {steps}")
        self.steps = steps

    def may_go(self, worker: str) -> bool:
        return all(other.pushes >= self.workers[worker].pushes for other in self.workers.values())

    def pace(self, worker: str, now_s: float) -> Pace:
        return Pace(f"{self.steps} steps each, then everybody waits for the last", steps=self.steps)


class Bsp(Lockstep):
    """Bulk-synchronous: all push after every step and wait for the last."""

    name = "bsp"

    def __init__(self) -> None:
        super().__init__(steps=1)


class Ssp(Policy):
    """Stale-synchronous: nobody is more than so many pushes ahead of the last."""

    name = "ssp"
    waits = True

    def __init__(self, ahead: int = 40) -> None:
        super().__init__()
        if ahead < 0:
            raise ValueError(f"a worker is at least 0 pushes ahead of the last, not {ahead}")
        self.ahead = ahead

    def may_go(self, worker: str) -> bool:
        last = min(other.pushes for other in self.workers.values())
        return self.workers[worker].pushes - last <= self.ahead

    def pace(self, worker: str, now_s: float) -> Pace:
        return Pace(f"after every step, at most {self.ahead} ahead of the last", steps=1)

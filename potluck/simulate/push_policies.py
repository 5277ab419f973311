"""Parameter-server policies under virtual time: the same policy, book and client code as a real run, thousands of
workers.

Workers differ in speed, slow down for a while now and then, vanish and come back. Their pushes pass their own line and
the server, which handles one at a time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from potluck.paramserver.applied_pushes import Book, Push
from potluck.paramserver.client import Client, Next
from potluck.paramserver.events import Answer, Report
from potluck.paramserver.outer import outer_factors
from potluck.paramserver.policy import Policy
from potluck.simulate.problem import Problem, Vector
from potluck.types import Pace

_LOOKS = 200  # at the loss in a run, for its course, unless something else is said
_MOST_STEPS = 1000  # that are simulated at once


@dataclass(frozen=True)
class Crowd:
    """Workers and what lies between them and the server."""

    step_s: tuple[float, ...]  # of each worker
    push_s: float = 0.1  # one way over a worker's own line
    serve_s: float = 0.002  # of the server, for a push and a pull
    hiccup: float = 0.0  # part of all bites in which a worker is slower, by a heavy-tailed factor
    vanish_s: float = math.inf  # mean time between the losses of one worker
    absent_s: float = 30.0

    @classmethod
    def mixed(cls, workers: int, heterogeneity: float, chance: np.random.Generator, **others: float) -> Crowd:
        """Log-normal speeds whose mean is so many times the slowest of twenty, and about 10 steps a second."""
        speeds = 10 * np.exp(chance.normal(0, math.log(max(heterogeneity, 1.0)) / 1.4, workers))
        return cls(tuple((1 / np.maximum(speeds, 0.05)).tolist()), **others)


@dataclass
class PushOutcome:
    """What a policy came to."""

    reached_s: float | None = None  # when the loss was at its target
    loss: float = math.nan
    busy: float = 0.0  # part of the time in which workers that were here trained
    steps: int = 0  # of all workers
    pushes: int = 0
    served: float = 0.0  # part of the time in which the server was busy
    staleness: float = 0.0  # pushes by others, mean
    apart: int = 0  # pushes between the first and the last worker, at the end
    course: list[tuple[float, float]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass
class _Worker:
    minimum: Vector
    weights: Vector
    base: Vector
    client: Client
    incarnation: int
    came_s: float = 0.0
    pushed: Vector | None = None  # the weights when its push left
    ticket: int = 0  # of its training under way: an older one was interrupted


class Simulation:
    """One run."""

    def __init__(self, policy: Policy, fleet: Crowd, problem: Problem, seed: int = 0) -> None:
        self._velocity = np.zeros_like(problem.start())
        self._policy, self._fleet, self._problem = policy, fleet, problem
        self._chance = np.random.default_rng(seed)
        self._book = Book()
        self.weights = problem.start()
        self._workers: dict[str, _Worker] = {}
        self._gone: dict[str, int] = {}
        self._minima = [problem.minimum(self._chance) for _ in fleet.step_s]
        centre = np.mean(self._minima, axis=0)
        self._minima = [m - centre for m in self._minima]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count, self._free_s, self._served_s, self._stale = 0, 0.0, 0.0, 0.0
        self._trained_s, self._here_s = 0.0, 0.0  # of all workers
        self.outcome = PushOutcome()

    def run(self, until_s: float, target: float = -math.inf, looks: int = _LOOKS) -> PushOutcome:
        """Trains for so long, or until the loss is down to a target when it is looked at, so many times."""
        for number in range(len(self._fleet.step_s)):
            self._come(number, 0.0)
        for look in range(looks):
            self._at(until_s * look / looks, self._look)
        if self._policy.check_s is not None:
            self._at(0.0, self._check)
        now_s = 0.0
        while self._events and self.outcome.reached_s is None:
            now_s, _, event = heapq.heappop(self._events)
            if now_s > until_s:
                break
            event(now_s)
            if math.isnan(self.outcome.loss) or self.outcome.loss <= target:
                self.outcome.reached_s = None if math.isnan(self.outcome.loss) else now_s
        return self._over(min(now_s, until_s))

    def _over(self, now_s: float) -> PushOutcome:
        found = self.outcome
        here_s = self._here_s + sum(now_s - worker.came_s for worker in self._workers.values())
        found.busy = self._trained_s / max(here_s, 1e-9)
        found.served, found.pushes = self._served_s / max(now_s, 1e-9), self._book.version
        found.staleness = self._stale / max(1, self._book.version)
        counts = [w.pushes for w in self._policy.workers.values()]
        found.apart = max(counts, default=0) - min(counts, default=0)
        return found

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, event))

    # --- what happens

    def _look(self, now_s: float) -> None:
        self.outcome.loss = self._problem.loss(self.weights)
        self.outcome.course.append((now_s, self.outcome.loss))

    def _check(self, now_s: float) -> None:
        self._take(self._policy.checked(self._problem.loss(self.weights), now_s), now_s)
        self._at(now_s + (self._policy.check_s or math.inf), self._check)

    def _come(self, number: int, now_s: float) -> None:
        name = f"w{number}"
        incarnation = self._gone.pop(name, 0) + 1
        answer = self._policy.joined(name, 100, now_s)
        self._book.enter(name, incarnation)
        client = Client(
            name, incarnation, answer.paces[name], waits=self._policy.waits, version=self._book.version, now_s=now_s
        )
        self._workers[name] = _Worker(
            self._minima[number], self.weights, self.weights, client, incarnation, came_s=now_s
        )
        self._train(number, now_s)
        if math.isfinite(self._fleet.vanish_s):
            after_s = float(self._chance.exponential(self._fleet.vanish_s))
            self._at(now_s + after_s, lambda at_s: self._go(number, incarnation, at_s))

    def _go(self, number: int, incarnation: int, now_s: float) -> None:
        """A worker vanishes, with what it had not pushed."""
        name = f"w{number}"
        worker = self._workers.get(name)
        if worker is None or worker.incarnation != incarnation:
            return
        self._here_s += now_s - worker.came_s
        del self._workers[name]
        self._gone[name] = incarnation
        self._take(self._policy.left(name, now_s), now_s)
        self._at(now_s + self._fleet.absent_s, lambda at_s: self._come(number, at_s))

    def _train(self, number: int, now_s: float) -> None:
        """Some steps, until the worker's pace says push."""
        worker, step_s = self._workers[f"w{number}"], self._fleet.step_s[number]
        if self._fleet.hiccup and self._chance.random() < self._fleet.hiccup:
            step_s *= 1 + float(self._chance.pareto(1.5))
        steps = self._bite(worker.client.pace, step_s)
        worker.ticket += 1
        ticket = worker.ticket
        self._at(now_s + steps * step_s, lambda at_s: self._trained(number, ticket, steps, steps * step_s, at_s))

    def _bite(self, pace: Pace, step_s: float) -> int:
        by_time = math.inf if pace.seconds is None else math.ceil(max(pace.seconds, 0.0) / step_s / 4)
        return int(max(1, min(math.inf if pace.steps is None else pace.steps, by_time, _MOST_STEPS)))

    def _trained(self, number: int, ticket: int, steps: int, took_s: float, now_s: float) -> None:
        worker = self._workers.get(f"w{number}")
        if worker is None or worker.ticket != ticket:
            return
        worker.weights = self._problem.trained(worker.weights, worker.minimum, steps, self._chance)
        self._trained_s += took_s
        self.outcome.steps += steps
        loss = self._problem.loss(worker.weights)
        if worker.client.step_done(32, loss, now_s, steps) is Next.PUSH:
            self._push(number, worker, now_s)
        if not worker.client.stands_still:
            self._train(number, now_s)

    def _push(self, number: int, worker: _Worker, now_s: float) -> None:
        push, worker.pushed = worker.client.push(now_s), worker.weights
        difference = worker.weights - worker.base
        self._at(now_s + self._fleet.push_s, lambda at_s: self._arrive(number, push, difference, at_s))

    def _arrive(self, number: int, push: Push, difference: Vector, now_s: float) -> None:
        """The server handles one push after the other."""
        if self._book.judge(push) != "apply":
            return
        begins_s = max(now_s, self._free_s)
        self._free_s = begins_s + self._fleet.serve_s
        self._served_s += self._fleet.serve_s
        self._at(self._free_s, lambda at_s: self._apply(push, difference, at_s))

    def _apply(self, push: Push, difference: Vector, now_s: float) -> None:
        worker = self._workers.get(push.worker)
        if worker is None or worker.incarnation != push.incarnation:
            return
        stale = self._book.staleness(push)
        self._stale += stale
        report = Report(push.worker, push.steps, push.samples, push.loss or 0.0, stale, worker.client.overhead_s)
        answer = self._policy.pushed(report, now_s)
        self.weights = self.weights + self._outer(answer.scale * difference)
        self._book.apply(self._book.entry(push, answer.scale))
        if self._book.lags:
            self._book.saved(self._book.page())
        self._take(answer, now_s)

    def _outer(self, change: Vector) -> Vector:
        """As the real server (`paramserver/server.py`)."""
        kept, part = outer_factors(self._policy.outer_momentum, len(self._policy.workers))
        self._velocity = kept * self._velocity + change
        found: Vector = part * (change + kept * self._velocity)
        return found

    def _take(self, answer: Answer, now_s: float) -> None:
        if answer.reason and len(self.outcome.reasons) < 1000:
            self.outcome.reasons.append(f"{now_s:.1f} s: {answer.reason}")
        for name in answer.go:
            self._at(now_s + self._fleet.push_s, self._let_go(name, self.weights, answer.paces.get(name)))
        for name, pace in answer.paces.items():
            if name not in answer.go and name in self._workers:
                self._workers[name].client.repace(pace)

    def _let_go(self, name: str, newest: Vector, pace: Pace | None) -> Callable[[float], None]:
        version, incarnation = self._book.version, self._workers[name].incarnation
        seen = self._book.seen(name)
        sequence = seen.sequence if seen is not None else 0

        def event(now_s: float) -> None:
            worker = self._workers.get(name)
            if worker is None or worker.incarnation != incarnation or worker.pushed is None:
                return
            stood_still = worker.client.stands_still
            worker.weights = newest + (worker.weights - worker.pushed)  # with what it trained meanwhile
            worker.base, worker.pushed = newest, None
            worker.client.answered(sequence, version, self._book.durable_up_to(name), pace, now_s)
            if stood_still:
                self._train(int(name[1:]), now_s)

        return event

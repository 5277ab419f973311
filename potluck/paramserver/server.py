"""The parameter server: applies pushes, each once and whole, and hands out weights of one version.

It knows neither sockets nor threads of its own; whoever calls it may be many threads. Weights are never changed in
place: every version is a vector of its own, so a pull needs no copy and is of one version.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import torch

from potluck.paramserver.applied_pushes import Book, Push, Seen, refusal
from potluck.paramserver.events import Answer, Report
from potluck.paramserver.harm import Norms, misfit
from potluck.paramserver.outer import outer_factors
from potluck.paramserver.policy import Policy
from potluck.paramserver.push_lines import Entered, Pushed, PushLedger
from potluck.tensors.flat_vector import Flat
from potluck.types import Pace

_Tensors = Mapping[str, torch.Tensor]
Save = Callable[[int, _Tensors, _Tensors], None]  # a version, its weights and velocity; returns when they are on disk

_LONG = 10  # times as long as a worker was given, and something is wrong with it
_VELOCITY = "outer"  # what the outer step remembers of a tensor, as optimizers name such things


@dataclass(frozen=True)
class Weights:
    """One version."""

    version: int
    vector: torch.Tensor


@dataclass(frozen=True)
class Release:
    """A worker may train on: from which weights, after which of its pushes."""

    weights: Weights
    sequence: int
    incarnation: int
    skipped: str = ""  # why that push was left out, if it was


@dataclass(frozen=True)
class Reply:
    """What became of a push, or of anything else that happened."""

    status: Literal["applied", "skipped", "known", "early", "fenced", "heard"]
    durable_up_to: int = 0
    go: Mapping[str, Release] = field(default_factory=dict)
    paces: Mapping[str, Pace] = field(default_factory=dict)
    reason: str = ""
    version: int = 0  # of the weights with the push, if it was applied


@dataclass(frozen=True)
class Admission:
    """What a worker begins with, and what its coming means for others."""

    incarnation: int
    weights: Weights
    pace: Pace
    waits: bool
    seen: int  # its newest push that counts
    others: Reply
    back: bool = False  # it goes on as who it was


class ParameterServer:
    """Weights, who pushed what, and the policy in force."""

    def __init__(
        self, tensors: _Tensors, policy: Policy, ledger: PushLedger, save: Save, *, buffers: Collection[str] = (),
        velocity: _Tensors | None = None, now_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Begins with these tensors, some of them buffers, which are of all the pushes in the ledger.

        Workers of before count as here until `leave` says that they are not, so that what the first of them pushes
        again does not count for all.
        """
        self.flat, self._policy, self._save = Flat.of(tensors, buffers), policy, save
        self._learnt = self.flat.only_learnt()
        self._rest = {name: t for name, t in tensors.items() if not t.is_floating_point()}
        self._log = ledger
        self._book, self._norms = Book(self._log.page), Norms()
        self._vector = self.flat.vector(tensors)
        self._velocity = self._velocity_of(velocity or {})
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._over = False
        self._skipped: dict[str, str] = {}  # whose newest push was left out, and why
        self._decisions = 0
        self._paced: dict[str, Pace] = {}  # what each was told last
        for worker in self._log.page.seen:
            policy.joined(worker, self._log.samples[worker], now_s)

    @property
    def weights(self) -> Weights:
        with self._lock:
            return self._newest()

    @property
    def workers(self) -> tuple[str, ...]:
        """Who counts as here."""
        with self._lock:
            return tuple(self._policy.workers)

    @property
    def lags(self) -> bool:
        """Whether somebody may not push again before `save`."""
        with self._lock:
            return self._book.lags

    def enter(self, worker: str, samples: int, now_s: float, step_s: float | None = None) -> Admission:
        """A worker begins, with a number of its own; the same worker of before is refused from now on."""
        with self._lock:
            known = self._book.seen(worker)
            incarnation = known.incarnation + 1 if known is not None else 1
            self._log.append(Entered(worker=worker, incarnation=incarnation, samples=samples))
            self._book.enter(worker, incarnation)
            others = self._policy.left(worker, now_s)
            answer = self._policy.joined(worker, samples, now_s, step_s)
            return self._admission(worker, incarnation, 0, answer.paces[worker], others)

    def back(self, worker: str, incarnation: int, now_s: float) -> Admission | None:
        """The server has restarted, and a worker goes on as who it was; None where it has to enter anew."""
        with self._lock:
            known = self._book.seen(worker)
            if known is None or known.incarnation != incarnation or worker not in self._policy.workers:
                return None
            found = self._admission(worker, incarnation, known.sequence, self._policy.pace(worker, now_s), Answer())
            return replace(found, back=True)

    def push(self, push: Push, difference: torch.Tensor, overhead_s: float, now_s: float) -> Reply:
        """Applies a difference, once. One that is known already is answered once more, if it need not wait."""
        fits = difference.dtype == self.flat.dtype and difference.shape == (self.flat.size,)
        norm = self._norm(difference) if fits else math.nan
        with self._lock:
            here = push.worker in self._policy.workers and not self._over
            status = self._book.judge(push) if here else "fenced"
            durable = self._book.durable_up_to(push.worker)
            if status == "known":
                return self._known(push, durable)
            if status != "apply":
                return Reply(status, durable, reason=refusal(push, status))
            harm = (
                self._norms.harm(push.worker, norm, push.steps)
                if fits
                else misfit(push.worker, self.flat.dtype, self.flat.size)
            )
            loss = push.loss if push.loss is not None else math.nan
            stale = self._book.staleness(push)
            report = Report(push.worker, push.steps, push.samples, loss, stale, overhead_s)
            entry = self._book.entry(push, self._policy.scale(report), harm)
            self._log.append(Pushed(entry=entry))  # before anything changes: there may be no room for it
            self._book.apply(entry)
            self._skipped[push.worker] = harm
            if not harm:
                self._move(difference, entry.scale)
            answer = self._policy.pushed(report, now_s)
            reply = self._reply("skipped" if harm else "applied", durable, answer, harm or answer.reason)
            return replace(reply, version=entry.version)

    def leave(self, worker: str, now_s: float) -> Reply:
        """A worker is gone; those who waited for it alone go on."""
        with self._lock:
            self._norms.left(worker)
            self._skipped.pop(worker, None)
            self._paced.pop(worker, None)
            answer = self._policy.left(worker, now_s)
            return self._reply("heard", 0, answer, answer.reason)

    @property
    def stuck(self) -> int:
        """How many are here, if all of them wait to be let go: none is left whose push could change that."""
        with self._lock:
            here = len(self._policy.workers)
            return here if len(self._policy.waiting) == here else 0

    def silent(self, now_s: float, least_s: float) -> dict[str, float]:
        """Who should have pushed long ago, and for how many seconds it has not: ten times as long as it was given, and
        at least so long. Who waits for others, or for a snapshot, cannot push."""
        with self._lock:
            held = {w for w in self._policy.workers if w in self._policy.waiting or self._book.holds_up(w)}
            since = {w: now_s - known.pushed_s for w, known in self._policy.workers.items() if w not in held}
            return {w: seconds for w, seconds in since.items() if seconds > max(least_s, _LONG * self._given_s(w))}

    def _given_s(self, worker: str) -> float:
        """How long a worker trains until its next push is due, by the pace that it was told."""
        pace, step_s = self._paced.get(worker), self._policy.workers[worker].step_s or 0.0
        if pace is None:
            return 0.0
        return pace.seconds if pace.seconds is not None else (pace.steps or 0) * step_s

    def check(self, loss: float, now_s: float) -> Reply:
        with self._lock:
            answer = self._policy.checked(loss, now_s)
            return self._reply("heard", 0, answer, answer.reason)

    def save(self) -> int:
        """Puts the newest weights on disk, while pushes go on; returns their version."""
        with self._saving:
            with self._lock:
                page, weights, velocity = self._book.page(), self._newest(), self._velocity
                if self._book.is_durable:
                    return weights.version
            self._log.sync()  # the ledger first: weights that it does not explain are of no use
            remembered = self._learnt.tensors(velocity) if velocity is not None else {}
            self._save(
                weights.version, {**self._rest, **self.flat.tensors(weights.vector)},
                {f"{name}/{_VELOCITY}": tensor for name, tensor in remembered.items()},
            )  # fmt: skip
            with self._lock:
                self._book.saved(page)
            return weights.version

    def end(self) -> None:
        """No push is applied any more."""
        with self._lock:
            self._over = True

    def durable_up_to(self, worker: str) -> int:
        """The newest push of a worker that a restart does not lose."""
        with self._lock:
            return self._book.durable_up_to(worker)

    def close(self) -> None:
        self._log.close()

    def _norm(self, update: torch.Tensor) -> float:
        """How far the weights would move; not finite where anything is not."""
        learnt, measured = update[: self.flat.learnt], update[self.flat.learnt :]
        sound = bool(torch.isfinite(measured).all())
        return float(torch.linalg.vector_norm(learnt)) if sound else math.nan

    def _move(self, update: torch.Tensor, scale: float) -> None:
        """Takes an update in; nothing that anybody may hold is changed in place."""
        at = self.flat.learnt
        moved = self._outer_step(self._vector[:at], update[:at], scale)
        if at < self.flat.size:
            moved = torch.cat([moved, torch.lerp(self._vector[at:], update[at:], scale)])
        self._vector = moved

    def _outer_step(self, learnt: torch.Tensor, difference: torch.Tensor, scale: float) -> torch.Tensor:
        momentum = self._policy.outer_momentum
        if not momentum:
            return torch.add(learnt, difference, alpha=scale)
        kept, part = outer_factors(momentum, len(self._policy.workers))
        change = difference * scale
        self._velocity = change if self._velocity is None else torch.add(change, self._velocity, alpha=kept)
        return torch.add(learnt, torch.add(change, self._velocity, alpha=kept), alpha=part)

    def _velocity_of(self, given: _Tensors) -> torch.Tensor | None:
        """As it was when the weights to begin with were saved, if there was any."""
        named = {name: given.get(f"{name}/{_VELOCITY}") for name, _ in self._learnt.shapes}
        known = {name: tensor for name, tensor in named.items() if tensor is not None}
        return self._learnt.vector(known) if self._policy.outer_momentum and len(known) == len(named) else None

    def _newest(self) -> Weights:
        return Weights(self._book.version, self._vector)

    def _admission(self, worker: str, incarnation: int, seen: int, pace: Pace, others: Answer) -> Admission:
        reply = self._reply("heard", 0, others, others.reason)
        mine = self._numbered({worker: pace})[worker]
        return Admission(incarnation, self._newest(), mine, self._policy.waits, seen, reply)

    def _known(self, push: Push, durable: int) -> Reply:
        newest = self._book.seen(push.worker)
        may_go = newest is not None and newest.sequence == push.sequence and push.worker not in self._policy.waiting
        go = {push.worker: self._release(push.worker, newest)} if may_go and newest is not None else {}
        return Reply("known", durable, go, reason="it was applied before")

    def _reply(
        self, status: Literal["applied", "skipped", "heard"], durable: int, answer: Answer, reason: str
    ) -> Reply:
        seen = {worker: self._book.seen(worker) for worker in answer.go}
        go = {worker: self._release(worker, known) for worker, known in seen.items() if known is not None}
        return Reply(status, durable, go, self._numbered(answer.paces), reason)

    def _release(self, worker: str, newest: Seen) -> Release:
        return Release(self._newest(), newest.sequence, newest.incarnation, self._skipped.get(worker, ""))

    def _numbered(self, paces: Mapping[str, Pace]) -> dict[str, Pace]:
        """So that whoever gets two of them knows which one is newer."""
        self._decisions += 1
        found = {worker: msgspec.structs.replace(pace, number=self._decisions) for worker, pace in paces.items()}
        self._paced |= found
        return found

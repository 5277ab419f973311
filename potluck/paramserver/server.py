"""The parameter server: applies pushes, each once and whole, and hands out weights of one version.

It knows neither sockets nor threads of its own; whoever calls it may be many threads. Weights are never changed in
place: every version is a vector of its own, so a pull needs no copy and is of one version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from potluck.paramserver.book import Book, Page, Push
from potluck.paramserver.flat import Flat
from potluck.paramserver.harm import Norms
from potluck.paramserver.policy import Policy
from potluck.paramserver.push_log import PUSHES, Entered, Pushed, PushLog
from potluck.paramserver.words import Answer, Pace, Report

Save = Callable[[int, Mapping[str, torch.Tensor]], None]  # a version and its weights; returns when they are on disk


@dataclass(frozen=True)
class Weights:
    """One version."""

    version: int
    vector: torch.Tensor


@dataclass(frozen=True)
class Reply:
    """What became of a push."""

    status: Literal["applied", "skipped", "known", "early", "fenced"]
    durable_up_to: int = 0
    go: Mapping[str, Weights] = field(default_factory=dict)  # who may train on, and from what
    paces: Mapping[str, Pace] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Admission:
    """What a worker begins with."""

    incarnation: int
    weights: Weights
    pace: Pace
    waits: bool


class ParameterServer:
    """Weights, who pushed what, and the policy in force."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], policy: Policy, folder: Path, save: Save, version: int = 0
    ) -> None:
        """Begins with these tensors, which are of so many pushes; what the ledger has beyond them is pushed again."""
        self._flat, self._policy, self._save = Flat.of(tensors), policy, save
        self._log = PushLog(folder / PUSHES, version)
        page = Page(version=version, seen=self._log.page.seen)
        self._book, self._norms = Book(page), Norms()
        self._vector = self._flat.vector(tensors)
        self._lock = threading.Lock()
        self._saving = threading.Lock()

    @property
    def flat(self) -> Flat:
        """How tensors lie in vectors."""
        return self._flat

    @property
    def weights(self) -> Weights:
        """The newest."""
        with self._lock:
            return self._newest()

    @property
    def lags(self) -> bool:
        """Whether somebody may not push again before `save`."""
        return self._book.lags

    def enter(self, worker: str, samples: int, now_s: float) -> Admission:
        """A worker begins, with a number of its own; the same worker of before is refused from now on."""
        with self._lock:
            known = self._book.page().seen.get(worker)
            incarnation = known.incarnation + 1 if known is not None else 1
            self._log.append(Entered(worker=worker, incarnation=incarnation))
            self._log.sync()
            self._book.enter(worker, incarnation)
            if worker in self._policy.workers:
                self._policy.left(worker, now_s)
            answer = self._policy.joined(worker, samples, now_s)
            return Admission(incarnation, self._newest(), answer.paces[worker], self._policy.waits)

    def back(self, worker: str, samples: int, now_s: float) -> Pace:
        """The server has restarted, and a worker that held on goes on as who it was."""
        with self._lock:
            return self._policy.joined(worker, samples, now_s).paces[worker]

    def push(self, push: Push, difference: torch.Tensor, overhead_s: float, now_s: float) -> Reply:
        """Applies a difference, once. One that is known already is answered as if it had just been applied."""
        harmless = difference.dtype == self._flat.dtype and difference.numel() == self._flat.size
        norm = float(torch.linalg.vector_norm(difference)) if harmless else float("nan")
        with self._lock:
            status = self._book.judge(push) if push.worker in self._policy.workers else "fenced"
            durable = self._book.durable_up_to(push.worker)
            if status == "known":
                return Reply("known", durable, {push.worker: self._newest()}, reason="it was applied before")
            if status != "apply":
                return Reply(status, durable, reason=_refusal(push, status))
            harm = self._norms.harm(push.worker, norm, push.steps)
            stale = self._book.staleness(push)
            report = Report(push.worker, push.steps, push.samples, push.loss, stale, overhead_s)
            answer = self._policy.pushed(report, now_s)
            self._log.append(Pushed(entry=self._book.apply(push, answer.scale, harm)))
            if not harm:
                self._vector = torch.add(self._vector, difference, alpha=answer.scale)
            return self._reply("skipped" if harm else "applied", durable, answer, harm or answer.reason)

    def leave(self, worker: str, now_s: float) -> Reply:
        """A worker is gone; those who waited for it alone go on."""
        with self._lock:
            self._norms.left(worker)
            answer = self._policy.left(worker, now_s)
            return self._reply("applied", 0, answer, answer.reason)

    def check(self, loss: float, now_s: float) -> Reply:
        """Tells the policy the loss."""
        with self._lock:
            answer = self._policy.checked(loss, now_s)
            return self._reply("applied", 0, answer, answer.reason)

    def save(self) -> int:
        """Puts the newest weights on disk, while pushes go on; returns their version."""
        with self._saving:
            with self._lock:
                page, weights = self._book.page(), self._newest()
            self._log.sync()  # the ledger first: weights that it does not explain are of no use
            self._save(weights.version, self._flat.tensors(weights.vector))
            with self._lock:
                self._book.saved(page)
            return weights.version

    def durable_up_to(self, worker: str) -> int:
        """The newest push of a worker that a restart does not lose."""
        with self._lock:
            return self._book.durable_up_to(worker)

    def close(self) -> None:
        """Closes the ledger."""
        self._log.close()

    def _newest(self) -> Weights:
        return Weights(self._book.version, self._vector)

    def _reply(self, status: Literal["applied", "skipped"], durable: int, answer: Answer, reason: str) -> Reply:
        newest = self._newest()
        return Reply(status, durable, dict.fromkeys(answer.go, newest), dict(answer.paces), reason)


def _refusal(push: Push, status: str) -> str:
    if status == "early":
        return f"push {push.sequence} of {push.worker} came before the one before it; push that one again"
    return f"this {push.worker} was replaced by a later one; join again"

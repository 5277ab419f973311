"""The coordinator: holds plan, data order and ledger; begins rounds, hears who is ready, and commits."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from potluck.control.commit import Judgement, judge
from potluck.control.ledger import entry, loss_digest
from potluck.errors import InputError, PotluckError
from potluck.job import Job
from potluck.metrics.records import EvaluationRecord, IncidentRecord, PlanAdopted, Record, RunEnded, RunStarted
from potluck.optimizers import Optimizer
from potluck.plan.schedule import ROUNDS_AHEAD
from potluck.runtime.evaluation import Evaluator, Judge, seen_before
from potluck.runtime.feeder import FedRound, Feeder
from potluck.runtime.layout import PlanLayout
from potluck.runtime.loading import training_loader
from potluck.runtime.model_state import ModelState
from potluck.runtime.roster import Roster
from potluck.runtime.run_folder import RunFolder
from potluck.runtime.saving import Saver
from potluck.runtime.state_transfer import send_state
from potluck.schedules import multiplier
from potluck.types import COORDINATOR, Plan, RoundRecord
from potluck.wire.link import Link
from potluck.wire.messages import Begin, Committed, Prepare, Prepared, Ready, Verdict

_AHEAD_ALONE = 4  # a lone device commits by itself and never waits for us,
_SAVE_AT_LEAST_S = 120.0
_BEGUN_ALONE = 2  # so it always has the next orders already


class Watcher(Protocol):
    """Somebody who looks at a run: the live display, a test."""

    def record(self, record: Record) -> None:
        """Called with every record, as it is written."""

    def lanes(self, round: int, busy: dict[str, float]) -> None:
        """Called after every round with the part of it that each device computed."""


@dataclass
class Session:
    """Everything one run needs, made before training starts."""

    job: Job
    optimizer: Optimizer
    plan: Plan
    layout: PlanLayout
    digest: str
    data_digest: str
    model: ModelState
    roster: Roster
    link: Link
    folder: RunFolder
    first_round: int
    term: int
    timeout_s: float
    plan_reason: str = "given"
    watchers: list[Watcher] = field(default_factory=list)
    should_stop: Callable[[], bool] = lambda: False


class Coordinator:
    """Trains one job over the devices of one plan."""

    def __init__(self, session: Session) -> None:
        self.s = session
        self.alone = len(session.plan.devices) == 1
        self.order: Any = None
        self.started_s = time.monotonic()
        self.last_commit_s = self.started_s
        self.committed = session.first_round
        trainable = [x for x in session.layout.programs.train.sources if x.kind == "parameter" and x.trainable]
        self.parameters = [x.name for x in trainable]
        self.saver = Saver(session, self._say)
        self.judge = Judge(session.job, *seen_before(session.folder.path, session.first_round))
        self.stopped_early = False

    def prepare(self) -> None:
        """Gives every device its stage and waits until all hold it."""
        s = self.s
        peers = {d: s.roster.links[d] for d in s.plan.devices}
        s.link.adopt(s.term, peers)
        for device in s.plan.devices:
            others = {d: a for d, a in peers.items() if d != device} | {COORDINATOR: s.link.address}
            s.roster.send(
                device,
                Prepare(
                    term=s.term, plan=s.plan, program=s.digest, peers=others, optimizer=s.optimizer, seed=s.job.seed,
                    clip_norm=s.job.clip_norm, own_commit=self.alone, window_bytes=s.layout.window_bytes(),
                ),
            )  # fmt: skip
        for stage, spec in enumerate(s.plan.stages):
            for member in spec.group:
                send_state(s.link, member.device, 0, s.model.of_stage(s.layout, stage), s.timeout_s)
        waiting = set(s.plan.devices)
        while waiting:
            device, message = self._next(f"waiting for {', '.join(sorted(waiting))} to prepare")
            if isinstance(message, Prepared):
                waiting.discard(device)

    def train(self) -> str:
        """Runs every round; returns why it ended. The devices are left waiting for orders."""
        s = self.s
        loader = training_loader(s.job, ahead=ROUNDS_AHEAD)
        self.order = loader.order
        self.last_commit_s = time.monotonic()
        self._announce()
        feeder = Feeder(
            loader, s.layout, s.link, s.first_round, _AHEAD_ALONE if self.alone else ROUNDS_AHEAD, s.timeout_s
        )
        evaluator = Evaluator(s, self._next) if s.job.eval_data is not None else None
        try:
            reason = self._rounds(feeder, evaluator)
        except PotluckError as error:
            with contextlib.suppress(PotluckError):  # a callback that failed may fail on this record too
                self._say_end("failed", str(error))
            raise
        finally:
            feeder.close()
            loader.close()
            if evaluator is not None:
                evaluator.close()
        self.saver.finish()
        self._say_end("early" if self.stopped_early else reason, "")
        return "stopped early" if self.stopped_early else reason

    def _rounds(self, feeder: Feeder, evaluator: Evaluator | None) -> str:
        s = self.s
        last = self.order.rounds
        begun: deque[tuple[FedRound, Begin]] = deque()
        saved_s = time.monotonic()
        for round in range(s.first_round, last):
            fed = feeder.next(s.timeout_s)
            stop = s.should_stop()
            evaluate = evaluator is not None and (self._due(round, s.job.eval_every) or round + 1 == last)
            save = self._due(round, s.job.checkpoint_every) or round + 1 == last or stop or evaluate
            if s.job.checkpoint_every is None and time.monotonic() - saved_s > _SAVE_AT_LEAST_S:
                save = True  # an epoch may take days
            saved_s = time.monotonic() if save else saved_s
            begin = Begin(
                round=round, sizes=fed.sizes, total_weight=fed.total_weight,
                lr_scale=multiplier(s.job.schedule, round), snapshot=save,
            )  # fmt: skip
            s.roster.broadcast(begin, s.plan.devices)
            begun.append((fed, begin))
            while len(begun) > (_BEGUN_ALONE if self.alone and not save else 0):
                self._settle(*begun.popleft())
                feeder.done()
            self.saver.check()
            if save:
                self.saver.save(self.committed, self.order)
            if evaluate and evaluator is not None:
                self._evaluate(evaluator, fed.epoch)
                if self.judge.patience_is_over:
                    self.stopped_early = True
                    return "finished"
            if stop:
                return "stopped"
        return "finished"

    def _due(self, round: int, every: int | None) -> bool:
        """Whether something done every so many rounds, or else after each epoch, comes after this round."""
        if every is not None:
            return (round + 1) % every == 0
        return bool(round + 1 == self.order.rounds or self.order.round(round + 1).index_in_epoch == 0)

    def _settle(self, fed: FedRound, begin: Begin) -> None:
        """Brings a round to its commit, or stops the run."""
        for attempt in range(2):
            ready, judgement = self._collect(begin, attempt)
            if judgement.kind == "commit":
                self._commit(fed, begin, ready, judgement)
                return
            self._incident("not_finite", begin.round, judgement)
            if judgement.kind == "retry" and not self.alone:
                self.s.roster.broadcast(Verdict(round=begin.round, kind="retry"), self.s.plan.devices)
            elif judgement.kind == "stop":
                break
        if not self.alone:
            self.s.roster.broadcast(Verdict(round=begin.round, kind="stop"), self.s.plan.devices)
        raise PotluckError(
            f"round {begin.round}: {judgement.reason}; it was not committed (tried twice). "
            f"Lower the learning rate, set clip_norm, or look at the data; the last checkpoint is intact"
        )

    def _collect(self, begin: Begin, attempt: int) -> tuple[dict[str, Ready], Judgement]:
        """Everybody's report on a round, and what follows from it."""
        reports: dict[str, Ready] = {}
        while len(reports) < len(self.s.plan.devices):
            missing = sorted(set(self.s.plan.devices) - set(reports))
            device, message = self._next(f"waiting for {', '.join(missing)} in round {begin.round}")
            if isinstance(message, Committed):
                message = message.ready
            if isinstance(message, Ready) and message.round == begin.round and device in self.s.plan.devices:
                reports[device] = message
        ordered = {d: reports[d] for d in self.s.plan.devices}
        if self.alone and attempt == 0 and not all(r.finite for r in ordered.values()):
            attempt = 1  # a lone device has already tried twice when it says so
        return ordered, judge(ordered, self.parameters, self.s.job.clip_norm, attempt)

    def _commit(self, fed: FedRound, begin: Begin, ready: dict[str, Ready], judgement: Judgement) -> None:
        """The ledger first, on disk; then the word."""
        now = time.monotonic()
        seconds, self.last_commit_s = now - self.last_commit_s, now
        losses = sorted((p for r in ready.values() for p in r.losses), key=lambda p: (p.micro_batch, p.row))
        self.s.folder.ledger.append(
            entry(
                round=begin.round, epoch=fed.epoch, term=self.s.term, ids=fed.ids, loss=judgement.loss,
                digest=loss_digest(p.loss for p in losses),
            )
        )  # fmt: skip
        if not self.alone:
            verdict = Verdict(round=begin.round, kind="commit", lr_scale=begin.lr_scale, clip=judgement.clip)
            self.s.roster.broadcast(verdict, self.s.plan.devices)
        self.committed = begin.round + 1
        self._say(
            RoundRecord(
                round=begin.round, epoch=fed.epoch, term=self.s.term, samples=len(fed.ids), loss=judgement.loss,
                learning_rate=self.s.optimizer.lr * begin.lr_scale, seconds=seconds,
                gradient_norm=judgement.gradient_norm,
                spent_s={d: {k: round(v, 6) for k, v in r.spent_s.items()} for d, r in ready.items()},
            )
        )  # fmt: skip
        busy = {d: min(1.0, r.busy_s / r.round_s) if r.round_s > 0 else 0.0 for d, r in ready.items()}
        for watcher in self.s.watchers:
            watcher.lanes(begin.round, busy)

    def _evaluate(self, evaluator: Evaluator, epoch: int) -> None:
        started = time.monotonic()
        loss, metrics, samples = evaluator.run()
        self.last_commit_s = time.monotonic()  # the next round does not answer for the evaluation
        better = self.judge.see(self.committed, loss, metrics)
        if better is not None:
            self.saver.mark_best(better)
        now = time.monotonic()
        self._say(
            EvaluationRecord(
                round=self.committed, epoch=epoch, samples=samples, loss=loss, metrics=metrics,
                best=better is not None, seconds=now - started, at_s=now - self.started_s,
            )
        )  # fmt: skip

    def _next(self, waiting_for: str) -> tuple[str, Any]:
        return self.s.roster.next(time.monotonic() + self.s.timeout_s, waiting_for)

    def _announce(self) -> None:
        s = self.s
        self._say(
            RunStarted(
                round=s.first_round, rounds=self.order.rounds, samples=s.job.sample_count,
                batch_size=s.plan.batch_size, micro_batch_size=s.plan.micro_batch_size, seed=s.job.seed,
                program=s.digest, devices=s.plan.devices,
            )
        )  # fmt: skip
        self._say(PlanAdopted(term=s.term, round=s.first_round, plan=s.plan, reason=s.plan_reason, at_s=0.0))

    def _incident(self, kind: Any, round: int, judgement: Judgement) -> None:
        action = "run once more" if judgement.kind == "retry" else "stopped"
        self._say(
            IncidentRecord(
                kind=kind, round=round, device=None, what=judgement.reason, action=action,
                at_s=time.monotonic() - self.started_s,
            )
        )  # fmt: skip

    def _say(self, record: Record) -> None:
        self.s.folder.records.append(record)
        for watcher in self.s.watchers:
            watcher.record(record)
        for index, callback in enumerate(self.s.job.callbacks):
            try:
                callback(record)
            except Exception as error:
                what = " ".join(f"{type(error).__name__}: {error}".split())
                raise InputError(f"job: callbacks[{index}] failed on a {type(record).__name__}: {what}") from error

    def _say_end(self, reason: Any, message: str) -> None:
        elapsed = time.monotonic() - self.started_s
        self._say(RunEnded(round=self.committed, reason=reason, message=message, seconds=elapsed, at_s=elapsed))

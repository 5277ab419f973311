"""The coordinator: holds plan, data order and ledger; begins rounds, hears who is ready, and commits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from potluck.control.cluster_events import Again, Began, Broken, Commit, Event, IsReady, Lost, Order, Settle, Written
from potluck.control.commit import Judgement, judge
from potluck.control.ledger import Ledger, LedgerEntry, entry, loss_digest
from potluck.coordinator.contexts import Session, TermOver
from potluck.coordinator.rounds.best_so_far import BestSoFar, seen_before
from potluck.coordinator.rounds.checkpointer import Checkpointer
from potluck.coordinator.rounds.evaluation import Evaluator
from potluck.coordinator.rounds.feeder import FedRound, Feeder
from potluck.coordinator.samples.loading import training_loader
from potluck.errors import DeviceLost, InputError, LinkError, LinkTimeout, Overdue, PotluckError
from potluck.job.learning_rates import multiplier
from potluck.metrics.records import (
    RECORDS,
    CopyRecord,
    EvaluationRecord,
    IncidentRecord,
    PlanAdopted,
    Record,
    RunEnded,
    RunStarted,
    read,
)
from potluck.plan.schedule.one_f_one_b import ROUNDS_AHEAD
from potluck.recover.copies import Copying, guardians, wards
from potluck.recover.placement import Restart
from potluck.tensors.checkpoint import exists
from potluck.tensors.state_transfer import send_state
from potluck.types import COORDINATOR, RoundRecord
from potluck.wire.link import Tag
from potluck.wire.messages import Begin, Committed, FromAgent, Prepare, Ready, Stored, Verdict

_AHEAD_ALONE = 4  # a lone device commits by itself and never waits for us,
_SAVE_AT_LEAST_S = 120.0
_GLANCE_S = 0.01
_LOOK_S = 0.25  # how often, while something is awaited from a link, the control channel is looked at
_BEGUN_ALONE = 2  # so it always has the next orders already
_GOES_ON = "goes on from what was trained again: the numbers are not the same bits any more"


class TermMachine(Protocol):
    """The state machine that decides what becomes of rounds and terms."""

    @property
    def training(self) -> bool:
        """Whether the term in force goes on."""

    def tell(self, event: Event) -> list[Order]:
        """Something happens; what only who trains can do about it."""

    def hear(self, device: str, message: FromAgent) -> None:
        """A device says something that is not about the round in hand."""

    def spares(self, devices: Sequence[str]) -> bool:
        """Whether there is a plan without these."""


def write_down(ledger: Ledger, written: LedgerEntry, other_bits: str) -> str:
    """Adds a round to the ledger. Returns in words what came out otherwise, if it was trained again and something did:
    no sample is lost by that, so it ends no run."""
    if written.round >= ledger.rounds:
        ledger.append(written)
        return ""
    what = ledger.replay(written)
    why = other_bits or "every bit should be the same: potluck or a device is at fault, compare with potluck verify"
    return f"trained again, it has another {what} than before ({why})" if what else ""


class RoundLoop:
    """Trains one job over the devices of one plan, until it is done or the term is over."""

    def __init__(self, session: Session, machine: TermMachine) -> None:
        self.s, self._machine = session, machine
        self.alone = len(session.plan.devices) == 1
        self.order = session.order
        self.last_commit_s = time.monotonic()
        self._reports: dict[str, Ready] = {}  # on the round in hand
        first_s = self.last_commit_s + session.first_copy_s
        self.copying = Copying(session.plan, session.term, first_s=first_s, enabled=session.copies)
        self.committed = session.first_round
        trainable = [x for x in session.layout.programs.train.sources if x.kind == "parameter" and x.trainable]
        self.parameters = [x.name for x in trainable]
        self.saver = Checkpointer(session, self.say)
        self.judge = BestSoFar(session.job, *seen_before(session.folder.path, session.first_round))
        self.stopped_early = False

    def prepare(self, restart: Restart, devices: Sequence[str]) -> None:
        """Tells every device what to put together for its stage, and gives what only the coordinator has."""
        s = self.s
        peers = {d: s.roster.links[d] for d in sorted(devices)}
        guarded = guardians(s.plan) if s.copies else {}
        s.link.adopt(s.term, peers)
        for device in peers:
            others = {d: a for d, a in peers.items() if d != device} | {COORDINATOR: s.link.address}
            s.roster.send(
                device,
                Prepare(
                    run=s.folder.run_id, term=s.term, round=restart.round, plan=s.plan, program=s.digest, peers=others,
                    moves=tuple(m for m in restart.moves if device in (m.source, m.target)), optimizer=s.optimizer,
                    seed=s.job.seed, clip_norm=s.job.clip_norm, own_commit=self.alone,
                    window_bytes=s.layout.window_bytes(), guardian=guarded.get(device),
                    copy_line=s.copy_lines.get((device, guarded[device])) if device in guarded else None,
                    wards=wards(s.plan, device) if s.copies else (),
                ),
            )  # fmt: skip
        # Not here: who is lost meanwhile must be noticed.
        threading.Thread(target=self._give, args=(restart,), name="potluck-giving", daemon=True).start()

    def _give(self, restart: Restart) -> None:
        """What only the coordinator has; if a device does not take it, it will not be prepared."""
        s = self.s
        with contextlib.suppress(LinkError):
            for move in restart.moves:
                if move.source == COORDINATOR:
                    state = s.model.some(s.layout, move.names)
                    send_state(s.link, move.target, restart.round, state, s.timeout_s, move.held, term=s.term)

    def train(self) -> str:
        """Runs every round; returns why it ended. The devices are left waiting for orders."""
        s = self.s
        loader = training_loader(s.job, ahead=ROUNDS_AHEAD)
        self.last_commit_s = time.monotonic()
        self._announce()
        feeder = Feeder(
            loader, s.layout, s.link, s.first_round, _AHEAD_ALONE if self.alone else ROUNDS_AHEAD, s.timeout_s
        )
        evaluator = Evaluator(s, self._receive) if s.job.eval_data is not None else None
        try:
            reason = self._rounds(feeder, evaluator)
            self.saver.finish()
        except DeviceLost as lost:
            self._machine.tell(Lost(device=lost.device, why=lost.why, silent=lost.silent))
            raise TermOver(str(lost)) from None
        except LinkError as error:
            self._machine.tell(Broken(term=s.term, why=str(error)))
            raise TermOver(str(error)) from None
        finally:
            feeder.close()
            loader.close()
            if evaluator is not None:
                evaluator.close()
        self.say_end("early" if self.stopped_early else reason, "")
        return "stopped early" if self.stopped_early else reason

    def _rounds(self, feeder: Feeder, evaluator: Evaluator | None) -> str:
        s = self.s
        last = self.order.rounds
        begun: deque[tuple[FedRound, Begin]] = deque()
        saved_s = time.monotonic()
        if s.first_round == last:  # somebody was lost after the last round
            if s.keeps:
                self.saver.save_again(last, self.order)
            if evaluator is not None:
                self._evaluate(evaluator, self.order.round(last - 1).epoch)
        elif evaluator is not None and self._evaluation_is_missing():
            self._evaluate(evaluator, self.order.round(s.first_round - 1).epoch)
        for round in range(s.first_round, last):
            change = s.change(last - round)
            stop = s.should_stop()
            if change is not None and change.kind == "left" and not self._machine.spares(change.devices):
                self._incident("left", self.committed, change.why, "nobody can take over: saves and stops")
                change, stop = None, True
            if change is not None:
                while begun:
                    self._settle(*begun.popleft())
                self.saver.finish()  # nobody is lost: what is under way arrives
                self._machine.tell(change)
                if not self._machine.training:
                    raise TermOver(change.why)
            fed = feeder.next(s.timeout_s)
            evaluate = evaluator is not None and (self._due(round, s.job.eval_every) or round + 1 == last)
            save = self._due(round, s.job.checkpoint_every) or round + 1 == last or stop or evaluate
            if s.job.checkpoint_every is None and time.monotonic() - saved_s > _SAVE_AT_LEAST_S:
                save = True  # an epoch may take days
            saved_s = time.monotonic() if save else saved_s
            settle, save = save, save and s.keeps  # also where nothing is kept, no round is left half done
            copy = self.copying.due(time.monotonic())
            begin = Begin(
                round=round, sizes=fed.sizes, total_weight=fed.total_weight,
                lr_scale=multiplier(s.job.schedule, round), snapshot=save, copy=copy,
                point=max(self.copying.point or 0, s.model.round),
            )  # fmt: skip
            if copy:
                self.copying.ordered(round + 1, time.monotonic())
            s.roster.broadcast(begin, s.plan.devices)
            self._machine.tell(Began(round=round))
            begun.append((fed, begin))
            while len(begun) > (_BEGUN_ALONE if self.alone and not settle else 0):
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

    def _evaluation_is_missing(self) -> bool:
        """Whether somebody was lost before the evaluation that was due after the last round."""
        first = self.s.first_round
        if self.s.fresh or not first or not self._due(first - 1, self.s.job.eval_every):
            return False
        records = read(self.s.folder.path / RECORDS)
        return not any(isinstance(r, EvaluationRecord) and r.round == first for r in records)

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
            action = "run once more" if judgement.kind == "retry" else "stopped"
            self._incident("not_finite", begin.round, judgement.reason, action)
            if judgement.kind == "retry":
                self._machine.tell(Again(round=begin.round))
            if judgement.kind == "retry" and not self.alone:
                self.s.roster.broadcast(Verdict(round=begin.round, kind="retry"), self.s.plan.devices)
            elif judgement.kind == "stop":
                break
        if not self.alone:
            self.s.roster.broadcast(Verdict(round=begin.round, kind="stop"), self.s.plan.devices)
        kept = "; the last checkpoint is intact" if exists(self.s.folder.path) else ""
        raise PotluckError(
            f"round {begin.round}: {judgement.reason}; it was not committed (tried twice). "
            f"Lower the learning rate, set clip_norm, or look at the data{kept}"
        )

    def _collect(self, begin: Begin, attempt: int) -> tuple[dict[str, Ready], Judgement]:
        """Everybody's report on a round, and what follows from it."""
        self._reports.clear()
        complete = False
        while not complete:
            missing = sorted(set(self.s.plan.devices) - set(self._reports))
            device, message = self._next(f"waiting for {', '.join(missing)} in round {begin.round}")
            if isinstance(message, Committed):
                message = message.ready
            if isinstance(message, Ready) and message.round == begin.round:
                self._reports[device] = message
                orders = self._machine.tell(IsReady(device=device, round=message.round))
                complete = Settle(round=begin.round) in orders
        reports = self._reports
        ordered = {d: reports[d] for d in self.s.plan.devices}
        if self.alone and attempt == 0 and not all(r.finite for r in ordered.values()):
            attempt = 1  # a lone device has already tried twice when it says so
        return ordered, judge(ordered, self.parameters, self.s.job.clip_norm, attempt)

    def _commit(self, fed: FedRound, begin: Begin, ready: dict[str, Ready], judgement: Judgement) -> None:
        """The ledger first, on disk; then the word."""
        now = time.monotonic()
        seconds, self.last_commit_s = now - self.last_commit_s, now
        losses = sorted((p for r in ready.values() for p in r.losses), key=lambda p: (p.micro_batch, p.row))
        self._write_down(
            entry(
                round=begin.round, epoch=fed.epoch, term=self.s.term, ids=fed.ids, loss=judgement.loss,
                digest=loss_digest(p.loss for p in losses),
            )
        )  # fmt: skip
        orders = self._machine.tell(Written(round=begin.round))
        if Commit(round=begin.round) in orders and not self.alone:
            verdict = Verdict(round=begin.round, kind="commit", lr_scale=begin.lr_scale, clip=judgement.clip)
            self.s.roster.broadcast(verdict, self.s.plan.devices)
        self.committed = begin.round + 1
        record = (
            RoundRecord(
                round=begin.round, epoch=fed.epoch, term=self.s.term, samples=len(fed.ids), loss=judgement.loss,
                learning_rate=self.s.optimizer.lr * begin.lr_scale, seconds=seconds,
                gradient_norm=judgement.gradient_norm,
                spent_s={d: {k: round(v, 6) for k, v in r.spent_s.items()} for d, r in ready.items()},
            )
        )  # fmt: skip
        self.say(record)
        self.s.observed(record)
        busy = {d: min(1.0, r.busy_s / r.round_s) if r.round_s > 0 else 0.0 for d, r in ready.items()}
        for watcher in self.s.watchers:
            watcher.lanes(begin.round, busy)

    def _write_down(self, written: LedgerEntry) -> None:
        """Adds to the ledger; a round that is trained again and comes out other than before is told."""
        if what := write_down(self.s.folder.ledger, written, self.s.other_bits):
            self._incident("inexact", written.round, what, _GOES_ON)

    def _evaluate(self, evaluator: Evaluator, epoch: int) -> None:
        started = time.monotonic()
        loss, metrics, samples = evaluator.run()
        self.last_commit_s = time.monotonic()  # the next round does not answer for the evaluation
        better = self.judge.see(self.committed, loss, metrics)
        if better is not None and self.s.keeps:
            self.saver.mark_best(better)
        now = time.monotonic()
        self.say(
            EvaluationRecord(
                round=self.committed, epoch=epoch, samples=samples, loss=loss, metrics=metrics,
                best=better is not None, seconds=now - started, at_s=now - self.s.started_s,
            )
        )  # fmt: skip

    def _receive(self, device: str, tag: Tag) -> list[memoryview]:
        """A message from a device's link. Whoever is lost meanwhile is noticed: its peers are silent then, too."""
        deadline = time.monotonic() + self.s.timeout_s
        while True:
            try:
                return self.s.link.receive(device, tag, _LOOK_S)
            except LinkTimeout:
                if time.monotonic() > deadline:
                    raise
            with contextlib.suppress(LinkTimeout):
                self._next(f"waiting for {tag} from {device}", _GLANCE_S)

    def _next(self, waiting_for: str, timeout_s: float | None = None) -> tuple[str, Any]:
        """What a device of the plan says next about training; TermOver or LinkError when this term cannot go on."""
        while True:
            deadline = time.monotonic() + (self.s.timeout_s if timeout_s is None else timeout_s)
            try:
                device, message = self.s.roster.next(deadline, waiting_for)
            except Overdue as overdue:
                raise LinkTimeout(str(overdue)) from None  # who does not say what it holds either, is lost
            except DeviceLost as lost:
                self._machine.tell(Lost(device=lost.device, why=lost.why, silent=lost.silent))
            else:
                if isinstance(message, Stored):
                    self._stored(device, message)
                elif isinstance(message, Ready | Committed) and device in self.s.plan.devices:
                    return device, message
                else:
                    self._machine.hear(device, message)
            if not self._machine.training:
                raise TermOver("the term was given up")

    def _stored(self, device: str, message: Stored) -> None:
        now_s, copying = time.monotonic(), self.copying
        if copying.stored(device, message.held, now_s, message.cost_s):
            at_s, took_s = now_s - self.s.started_s, copying.took_s or 0.0
            self.say(CopyRecord(round=message.held.round, seconds=took_s, period_s=copying.period_s, at_s=at_s))

    def _announce(self) -> None:
        s = self.s
        if s.fresh:
            started = RunStarted(
                round=s.first_round, rounds=self.order.rounds, samples=s.job.sample_count,
                batch_size=s.plan.batch_size, micro_batch_size=s.plan.micro_batch_size, seed=s.job.seed,
                program=s.digest, devices=s.plan.devices,
            )  # fmt: skip
            self.say(started)
        at_s = 0.0 if s.fresh else time.monotonic() - s.started_s
        self.say(PlanAdopted(term=s.term, round=s.first_round, plan=s.plan, reason=s.plan_reason, at_s=at_s))

    def _incident(self, kind: Any, round: int, what: str, action: str, device: str | None = None) -> None:
        at_s = time.monotonic() - self.s.started_s
        self.say(IncidentRecord(kind=kind, round=round, device=device, what=what, action=action, at_s=at_s))

    def say(self, record: Record) -> None:
        """Writes a record and shows it to everybody who watches."""
        self.s.folder.records.append(record)
        for watcher in self.s.watchers:
            watcher.record(record)
        for index, callback in enumerate(self.s.job.callbacks):
            try:
                callback(record)
            except Exception as error:
                what = " ".join(f"{type(error).__name__}: {error}".split())
                raise InputError(f"job: callbacks[{index}] failed on a {type(record).__name__}: {what}") from error

    def say_end(self, reason: Any, message: str) -> None:
        """Writes how the run ended."""
        elapsed = time.monotonic() - self.s.started_s
        self.say(RunEnded(round=self.committed, reason=reason, message=message, seconds=elapsed, at_s=elapsed))

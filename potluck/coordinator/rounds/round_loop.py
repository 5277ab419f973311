"""Trains by one plan: begins rounds, hears who is ready, judges and commits them, until the run or the term is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Protocol

from potluck.control.cluster_events import (
    Again,
    Began,
    Broken,
    Commit,
    Event,
    IsReady,
    Lost,
    Order,
    WantedChange,
    Written,
)
from potluck.control.commit import Judgement, judge
from potluck.control.open_rounds import OpenRounds
from potluck.coordinator.contexts import TermContext, TermOver
from potluck.coordinator.rounds.announcer import Announcer
from potluck.coordinator.rounds.best_so_far import BestSoFar, seen_before
from potluck.coordinator.rounds.checkpointer import Checkpointer
from potluck.coordinator.rounds.evaluation import Evaluator
from potluck.coordinator.rounds.feeder import FedRound, Feeder
from potluck.coordinator.rounds.round_book import RoundBook
from potluck.coordinator.rounds.standby import Standby
from potluck.coordinator.samples.loading import training_loader
from potluck.errors import DeviceLost, LinkError, LinkTimeout, Overdue, PotluckError
from potluck.job.learning_rates import multiplier
from potluck.metrics.records import RECORDS, CopyRecord, EvaluationRecord, read
from potluck.plan.schedule.action_list import ROUNDS_AHEAD
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.recover.copies import Copying
from potluck.tensors.checkpoint import exists
from potluck.wire.link import Tag
from potluck.wire.messages import Begin, Committed, FromAgent, Ready, Stored, Verdict

_FED_AHEAD_ALONE = 4  # rounds whose samples are on their way to a lone device, which never waits for us
_GLANCE_S = 0.01
_LOOK_S = 0.25  # how often, while something is awaited from a link, the control channel is looked at


class TermMachine(Protocol):
    """The state machine that decides what becomes of rounds and terms."""

    @property
    def training(self) -> bool:
        """Whether the term in force goes on."""

    @property
    def open_rounds(self) -> OpenRounds:
        """Which rounds are open, may be begun and may be committed."""

    def tell(self, event: Event) -> list[Order]:
        """Something happens; what only who trains can do about it."""

    def hear(self, device: str, message: FromAgent) -> None:
        """A device says something that is not about the round in hand."""

    def spares(self, devices: Sequence[str]) -> bool:
        """Whether there is a plan without these."""


class RoundLoop:
    """Trains one job over the devices of one plan, until it is done or the term is over."""

    def __init__(self, term: TermContext, machine: TermMachine, announcer: Announcer) -> None:
        self.term, self._run, self._machine, self._announcer = term, term.run, machine, announcer
        self._book = RoundBook(term, announcer)
        self._begun: dict[int, tuple[FedRound, Begin]] = {}
        self._reports: dict[int, dict[str, Ready]] = {}
        first_s = time.monotonic() + self._run.first_copy_s
        self._copying = Copying(term.plan, term.term, first_s=first_s, enabled=term.copies, rules=self._run.copy_rules)
        self.committed = term.first_round
        trainable = [x for x in term.layout.programs.train.sources if x.kind == "parameter" and x.trainable]
        self._parameters = [x.name for x in trainable]
        self.saver = Checkpointer(term, announcer)
        self._judge = BestSoFar(self._run.job, *seen_before(self._run.folder.path, term.first_round))
        self._saved_s = time.monotonic()
        self._first_term = True  # that trains: nobody was lost before it
        schedule = schedule_named(term.plan.schedule)
        self._overlaps = not schedule.flushes and not term.alone
        self._fed_ahead = _FED_AHEAD_ALONE if term.alone else ROUNDS_AHEAD + schedule.staleness
        self._promised = False  # devices go on with the next round as soon as it begins, and wait for it
        self._put_off: WantedChange | None = None  # until nothing is promised

    def train(self) -> str:
        """Runs every round; returns why it ended. The devices are left waiting for orders."""
        run, term = self._run, self.term
        loader = training_loader(run.job, ahead=self._fed_ahead)
        self._book.start_clock()
        self._first_term = self._announcer.adopted(term)
        feeder = Feeder(loader, term.layout, run.link, term.first_round, self._fed_ahead, run.timeout_s)
        evaluator = Evaluator(term, self._receive) if run.job.eval_data is not None else None
        try:
            reason = self._rounds(feeder, evaluator)
            self.saver.finish()
        except DeviceLost as lost:
            self._machine.tell(Lost(device=lost.device, why=lost.why, silent=lost.silent))
            raise TermOver(str(lost)) from None
        except LinkError as error:
            self._machine.tell(Broken(term=term.term, why=str(error)))
            raise TermOver(str(error)) from None
        finally:
            feeder.close()
            loader.close()
            if evaluator is not None:
                evaluator.close()
        self._announcer.ended(self.committed, "early" if reason == "stopped early" else reason)
        return reason

    def _rounds(self, feeder: Feeder, evaluator: Evaluator | None) -> str:
        run, last = self._run, self._run.order.rounds
        standby = Standby(self.term, self._announcer.say)
        self._saved_s = time.monotonic()
        self._make_up(evaluator)
        for round in range(self.term.first_round, last):
            stop = self._changes(round, feeder)
            standby.look(self.committed)
            fed = feeder.next(run.timeout_s)
            evaluate = evaluator is not None and (self._due(round, run.job.eval_every) or round + 1 == last)
            save = self._save_after(round, stop or evaluate)
            follows = self._overlaps and not save and self._put_off is None
            self._begin(fed, save=save and run.keeps, follows=follows)
            # Before it is saved or evaluated, no round is left half done.
            while self._rounds_open and (save or not self._machine.open_rounds.may_begin(round + 1)):
                self._settle_first(feeder)
            self.saver.check()
            if save and run.keeps:
                self.saver.save(self.committed, run.order)
            if evaluate and evaluator is not None:
                self._evaluate(evaluator, fed.epoch)
                if self._judge.patience_is_over:
                    return "stopped early"
            if stop:
                return "stopped"
        return "finished"

    @property
    def _rounds_open(self) -> bool:
        return bool(self._machine.open_rounds.reports)

    def _make_up(self, evaluator: Evaluator | None) -> None:
        """What was due after the last round when somebody was lost."""
        first, order = self.term.first_round, self._run.order
        over = first == order.rounds
        if over and self._run.keeps:
            self.saver.save_again(first, order)
        if evaluator is not None and (over or self._evaluation_is_missing()):
            self._evaluate(evaluator, order.round(first - 1).epoch)

    def _changes(self, round: int, feeder: Feeder) -> bool:
        """Lets another plan come into force where one is wanted; whether the run is to stop after this round."""
        change = self._put_off or self._run.change(self._run.order.rounds - round)
        self._put_off = change if self._promised else None
        if change is None or self._promised:
            return self._run.should_stop()
        if change.kind == "left" and not self._machine.spares(change.devices):
            self._announcer.incident("left", self.committed, change.why, "nobody can take over: saves and stops")
            return True
        while self._rounds_open:
            self._settle_first(feeder)
        self.saver.finish()  # nobody is lost: what is under way arrives
        self._machine.tell(change)
        if not self._machine.training:
            raise TermOver(change.why)
        return self._run.should_stop()

    def _save_after(self, round: int, due: bool) -> bool:
        """Whether a checkpoint follows this round: every so often, at the least, as an epoch may take days."""
        job = self._run.job
        late = job.checkpoint_every is None and time.monotonic() - self._saved_s > self._run.checkpoint_s
        save = due or late or self._due(round, job.checkpoint_every) or round + 1 == self._run.order.rounds
        if save:
            self._saved_s = time.monotonic()
        return save

    def _begin(self, fed: FedRound, *, save: bool, follows: bool) -> None:
        run, plan = self._run, self.term.plan
        self._promised = follows
        copy = self._copying.due(time.monotonic())
        begin = Begin(
            round=fed.round, sizes=fed.sizes, total_weight=fed.total_weight,
            lr_scale=multiplier(run.job.schedule, fed.round), snapshot=save, copy=copy,
            point=max(self._copying.point or 0, run.model.round), follows=follows,
        )  # fmt: skip
        if copy:
            self._copying.ordered(fed.round + 1, time.monotonic())
        run.roster.broadcast(begin, plan.devices)
        self._begun[fed.round], self._reports[fed.round] = (fed, begin), {}
        self._machine.tell(Began(round=fed.round))

    def _evaluation_is_missing(self) -> bool:
        """Whether somebody was lost before the evaluation that was due after the last round."""
        first = self.term.first_round
        if self._first_term or not first or not self._due(first - 1, self._run.job.eval_every):
            return False
        records = read(self._run.folder.path / RECORDS)
        return not any(isinstance(r, EvaluationRecord) and r.round == first for r in records)

    def _due(self, round: int, every: int | None) -> bool:
        """Whether something done every so many rounds, or else after each epoch, comes after this round."""
        if every is not None:
            return (round + 1) % every == 0
        return bool(round + 1 == self._run.order.rounds or self._run.order.round(round + 1).index_in_epoch == 0)

    def _settle_first(self, feeder: Feeder) -> None:
        self._settle(self._machine.open_rounds.first)
        feeder.done()

    def _settle(self, round: int) -> None:
        """Brings a round to its commit, or stops the run."""
        plan, (fed, begin) = self.term.plan, self._begun[round]
        for attempt in range(2):
            ready, judgement = self._collect(round, attempt)
            if judgement.kind == "commit":
                self._commit(fed, begin, ready, judgement)
                return
            action = "run once more" if judgement.kind == "retry" else "stopped"
            self._announcer.incident("not_finite", round, judgement.reason, action)
            if judgement.kind == "stop":
                break
            self._machine.tell(Again(round=round))
            if not self.term.alone:
                self._run.roster.broadcast(Verdict(round=round, kind="retry"), plan.devices)
        if not self.term.alone:
            self._run.roster.broadcast(Verdict(round=round, kind="stop"), plan.devices)
        kept = "; the last checkpoint is intact" if exists(self._run.folder.path) else ""
        raise PotluckError(
            f"round {round}: {judgement.reason}; it was not committed{'' if self._overlaps else ' (tried twice)'}. "
            f"Lower the learning rate, set clip_norm, or look at the data{kept}"
        )

    def _collect(self, round: int, attempt: int) -> tuple[dict[str, Ready], Judgement]:
        """Everybody's report on a round, and what follows from it."""
        while not self._machine.open_rounds.may_commit(round):
            missing = sorted(self._machine.open_rounds.awaited(round))
            self._hear(f"waiting for {', '.join(missing)} in round {round}", self._run.timeout_s)
        ordered = {d: self._reports[round][d] for d in self.term.plan.devices}
        once = self.term.alone or self._overlaps  # alone, it has tried twice when it says so
        if once and attempt == 0 and not all(r.finite for r in ordered.values()):
            attempt = 1
        return ordered, judge(ordered, self._parameters, self._run.job.clip_norm, attempt)

    def _commit(self, fed: FedRound, begin: Begin, ready: dict[str, Ready], judgement: Judgement) -> None:
        """The ledger first, on disk; then the word."""
        round = fed.round
        self._book.write(fed, ready, judgement)
        orders = self._machine.tell(Written(round=round))
        if Commit(round=round) in orders and not self.term.alone:
            verdict = Verdict(round=round, kind="commit", lr_scale=begin.lr_scale, clip=judgement.clip)
            self._run.roster.broadcast(verdict, self.term.plan.devices)
        del self._begun[round], self._reports[round]
        self.committed = round + 1
        self._book.tell(fed, begin, ready, judgement)

    def _evaluate(self, evaluator: Evaluator, epoch: int) -> None:
        started = time.monotonic()
        loss, metrics, samples = evaluator.run()
        self._book.start_clock()  # the next round does not answer for the evaluation
        better = self._judge.see(self.committed, loss, metrics)
        if better is not None and self._run.keeps:
            self.saver.mark_best(better)
        self._announcer.say(
            EvaluationRecord(
                round=self.committed, epoch=epoch, samples=samples, loss=loss, metrics=metrics,
                best=better is not None, seconds=time.monotonic() - started, at_s=self._announcer.at_s(),
            )
        )  # fmt: skip

    def _receive(self, device: str, tag: Tag) -> list[memoryview]:
        """A message from a device's link. Whoever is lost meanwhile is noticed: its peers are silent then, too."""
        deadline = time.monotonic() + self._run.timeout_s
        while True:
            try:
                return self._run.link.receive(device, tag, _LOOK_S)
            except LinkTimeout:
                if time.monotonic() > deadline:
                    raise
            with contextlib.suppress(LinkTimeout):
                self._hear(f"waiting for {tag} from {device}", _GLANCE_S)

    def _hear(self, waiting_for: str, timeout_s: float) -> None:
        """Whatever a device says next; TermOver or LinkError when this term cannot go on."""
        try:
            device, message = self._run.roster.next(time.monotonic() + timeout_s, waiting_for)
        except Overdue as overdue:
            raise LinkTimeout(str(overdue)) from None  # who does not say what it holds either, is lost
        except DeviceLost as lost:
            self._machine.tell(Lost(device=lost.device, why=lost.why, silent=lost.silent))
        else:
            if isinstance(message, Stored):
                self._stored(device, message)
            elif isinstance(message, Ready | Committed):
                self._note(device, message.ready if isinstance(message, Committed) else message)
            else:
                self._machine.hear(device, message)
        if not self._machine.training:
            raise TermOver("the term was given up")

    def _note(self, device: str, ready: Ready) -> None:
        """A report counts if its round is open, and once."""
        if device in self._machine.open_rounds.awaited(ready.round):
            self._reports[ready.round][device] = ready
            self._machine.tell(IsReady(device=device, round=ready.round))

    def _stored(self, device: str, message: Stored) -> None:
        copying = self._copying
        if copying.stored(device, message.held, time.monotonic(), message.cost_s):
            at_s, took_s = self._announcer.at_s(), copying.took_s or 0.0
            record = CopyRecord(round=message.held.round, seconds=took_s, period_s=copying.period_s, at_s=at_s)
            self._announcer.say(record)

"""What is told of a run while it goes on: to its records, to who watches, and to the user's callbacks."""

from __future__ import annotations

import time
from typing import Any

from potluck.advice import one_line
from potluck.coordinator.contexts import RunContext, TermContext
from potluck.errors import InputError
from potluck.metrics.records import IncidentRecord, PlanAdopted, Record, RunEnded, RunStarted


class Announcer:
    """Writes every record, and shows it to everybody who watches."""

    def __init__(self, run: RunContext) -> None:
        self._run, self._started = run, False

    def at_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._run.started_s

    def say(self, record: Record) -> None:
        """Writes a record and shows it to everybody who watches."""
        self._run.folder.records.append(record)
        for watcher in self._run.watchers:
            watcher.record(record)
        for index, callback in enumerate(self._run.job.callbacks):
            try:
                callback(record)
            except Exception as error:
                what = one_line(error)
                raise InputError(f"job: callbacks[{index}] failed on a {type(record).__name__}: {what}") from error

    def adopted(self, term: TermContext) -> bool:
        """A plan is in force; before the first that is, what is trained is told. Returns whether it is the first."""
        run, plan = self._run, term.plan
        first, self._started = not self._started, True
        if first:
            self.say(
                RunStarted(
                    round=term.first_round, rounds=run.order.rounds, samples=run.job.sample_count,
                    batch_size=plan.batch_size, micro_batch_size=plan.micro_batch_size, seed=run.job.seed,
                    program=run.digest, devices=plan.devices,
                )
            )  # fmt: skip
        at_s = 0.0 if first else self.at_s()
        self.say(PlanAdopted(term=term.term, round=term.first_round, plan=plan, reason=term.plan_reason, at_s=at_s))
        return first

    def incident(self, kind: Any, round: int, what: str, action: str, device: str | None = None) -> None:
        """Something happened that nobody wished for."""
        self.say(IncidentRecord(kind=kind, round=round, device=device, what=what, action=action, at_s=self.at_s()))

    def ended(self, committed: int, reason: Any, message: str = "") -> None:
        elapsed_s = self.at_s()
        self.say(RunEnded(round=committed, reason=reason, message=message, seconds=elapsed_s, at_s=elapsed_s))

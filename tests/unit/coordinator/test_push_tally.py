"""How far a run around a parameter server is said to be."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.coordinator.serving.push_tally import SyncTally
from potluck.errors import PotluckError
from potluck.metrics.records import PushRecord, Record, RunStarted, SyncAdopted
from potluck.paramserver.applied_pushes import Push
from potluck.paramserver.messages import HeldOut, PushWords
from potluck.paramserver.server import Reply
from potluck.types import Pace
from tests.unit.coordinator.small_job import small_job


class Run:
    """A tally, and what it wrote, showed and said."""

    def __init__(self) -> None:
        self.written: list[Record] = []
        self.shown: list[Record] = []
        self.said: list[str] = []
        self.full = False
        self.tally = SyncTally(
            small_job(), cast(Any, SimpleNamespace(append=self._append)), self.shown.append, self.said.append
        )
        self.tally.epoch_samples, self.tally.total = 12, 36

    def _append(self, record: Record) -> None:
        if self.full:
            raise PotluckError("records.jsonl: cannot be written")
        self.written.append(record)

    def pushed(self, worker: str, loss: float | None, reply: Reply | None = None, **more: Any) -> PushRecord:
        push = Push(worker=worker, incarnation=1, sequence=1, base=0, steps=1, samples=8, loss=loss, **more)
        words = PushWords(push=push, overhead_s=0.0, cpu_s=0.5, held_out=HeldOut(version=3, loss=0.25, samples=5))
        self.tally.pushed(words, reply or Reply("applied", version=4))
        record = self.shown[-1]
        assert isinstance(record, PushRecord)
        return record


def test_only_what_was_applied_is_trained_and_rounds_and_epochs_follow_from_it() -> None:
    run = Run()
    first = run.pushed("a", 1.0)
    assert (first.round, first.epoch, first.version, first.skipped) == (2, 0, 4, "")
    left_out = run.pushed("b", 9.0, Reply("skipped", reason="it grew"))
    assert (left_out.skipped, run.tally.samples) == ("it grew", 8)
    assert math.isnan(run.tally.loss_of(["b"]))
    assert (run.pushed("a", 1.0).epoch, run.tally.rounds_an_epoch) == (1, 3)


def test_what_is_left_is_counted_in_batches_that_are_begun() -> None:
    run = Run()
    assert run.tally.batches_left == 9  # of 4 samples
    run.tally.samples = 35
    assert run.tally.batches_left == 1
    run.tally.samples = 40  # the last push may be of more than was left
    assert run.tally.batches_left == 0


def test_a_record_says_what_the_worker_found_and_why_it_pushes_when_it_does() -> None:
    pace = Pace(reason="every step", steps=1)
    record = Run().pushed("a", 1.0, Reply("applied", paces={"a": pace}, reason="applied at once"))
    assert (record.reason, record.cpu_s) == ("every step", 0.5)
    assert (record.held_out_loss, record.held_out_samples, record.held_out_version) == (0.25, 5, 3)


def test_losses_count_by_the_samples_of_their_devices_and_by_the_weights_that_were_pulled() -> None:
    run = Run()
    run.tally.owned = {"a": 3, "b": 1}
    run.pushed("a", 9.0, pulled_loss=1.0)
    run.pushed("b", 5.0)
    assert run.tally.loss_of(["a", "b"]) == pytest.approx((3 * 1.0 + 5.0) / 4)
    run.tally.forget("a")
    assert run.tally.loss_of(["a", "b"]) == 5.0
    assert math.isnan(run.tally.loss_of([]))


def test_a_loss_that_is_not_finite_leaves_the_last_one() -> None:
    run = Run()
    run.pushed("a", 2.0)
    run.pushed("a", None)
    assert run.tally.loss_of(["a"]) == 2.0


def test_what_cannot_be_written_is_shown_and_said_once_until_something_can() -> None:
    run = Run()
    run.full = True
    for _ in range(3):
        run.tally.incident("lost", "a", "it is silent", "others go on")
    assert len(run.shown) == 3
    assert len(run.said) == 1
    assert "tried again" in run.said[0]
    run.full = False
    run.tally.incident("joined", "a", "it is back", "it gets its share")
    run.full = True
    run.tally.no_room(PotluckError("the disk is full"))
    assert [len(run.written), len(run.said)] == [1, 2]


def test_at_its_beginning_a_run_says_what_is_trained_and_by_what_policy() -> None:
    run = Run()
    run.tally.begins("program", "local", {"a": 8, "b": 4}, 0.002)
    started, adopted = run.written
    assert isinstance(started, RunStarted)
    assert isinstance(adopted, SyncAdopted)
    assert (started.rounds, started.samples, started.devices) == (9, 12, ("a", "b"))
    assert (adopted.policy, adopted.samples) == ("local", {"a": 8, "b": 4})
    assert adopted.reason == "a step takes 2 ms on the slowest of 2 devices"
    run.tally.ended("finished", "done")
    assert run.written[-1].round == 0

"""Checkpoints while training goes on: collected and written in the background, one at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from potluck.coordinator.contexts import TermContext
from potluck.coordinator.rounds.announcer import Announcer
from potluck.coordinator.run_folder.folder import save_model
from potluck.errors import PotluckError
from potluck.metrics.records import CheckpointRecord
from potluck.tensors import checkpoint
from potluck.tensors.state_transfer import receive_state

GO_ON = "the last checkpoint is intact: go on with --resume"


class Checkpointer:
    """Collects every stage's state after a round and writes a checkpoint. A full disk does not stop training."""

    def __init__(self, term: TermContext, announcer: Announcer) -> None:
        self._run, self._layout, self._announcer = term.run, term.layout, announcer
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="potluck-saver")
        self._jobs: list[Future[None]] = []
        self._reporters = [d for d in term.plan.devices if any(term.layout.reported_names(d))]
        self._lock = threading.Lock()
        self._over = False

    def abandon(self) -> None:
        """Leaves the model as it is by now, for whoever goes on with it. Call after the link was cancelled."""
        with self._lock:
            self._over = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def save(self, round: int, order: Any) -> None:
        """Starts a checkpoint of so many committed rounds."""
        self._jobs = [j for j in self._jobs if not j.done() or j.exception() is not None]
        self._jobs.append(self._pool.submit(self._collect_and_write, round, order))

    def mark_best(self, best: checkpoint.Best) -> None:
        """Remembers the best one, after it is written."""
        self._jobs.append(self._pool.submit(self._mark, best))

    def _mark(self, best: checkpoint.Best) -> None:
        try:
            checkpoint.mark_best(self._run.folder.path, best)
        except PotluckError as error:
            self._warn(best.round, error)

    def check(self) -> None:
        """Raises what went wrong so far."""
        for job in self._jobs:
            if job.done():
                job.result()

    def finish(self) -> None:
        """Waits for what is under way; raises what went wrong while collecting."""
        self._pool.shutdown(wait=True)
        for job in self._jobs:
            job.result()

    def _collect_and_write(self, round: int, order: Any) -> None:
        started = time.monotonic()
        reports = []
        for device in self._reporters:
            reports.append(receive_state(self._run.link, device, round, self._run.timeout_s))
            self._run.model.check(device, reports[-1], *self._layout.reported_names(device))
        with self._lock:
            if self._over:
                return
            self._run.model.take(round, reports)
        self._write(round, order, started)

    def save_again(self, round: int, order: Any) -> None:
        """Starts a checkpoint of what was collected already."""
        self._jobs.append(self._pool.submit(self._write, round, order, time.monotonic()))

    def _write(self, round: int, order: Any, started: float) -> None:
        position = self._position(round, order)
        weights = self._run.model.weights()
        try:
            checkpoint.write(
                self._run.folder.path, position, weights, self._run.model.optimizer, keep=self._run.job.keep
            )
        except PotluckError as error:
            self._warn(round, error)
            return
        self._run.roster.what_now = GO_ON
        size = sum(t.nbytes for t in (*weights.values(), *self._run.model.optimizer.values()))
        seconds = time.monotonic() - started
        self._announcer.say(CheckpointRecord(round=round, bytes=size, seconds=seconds, at_s=self._announcer.at_s()))

    def _warn(self, round: int, error: PotluckError) -> None:
        self._announcer.incident("checkpoint", round, str(error), "training goes on without it")

    def _position(self, round: int, order: Any) -> checkpoint.Position:
        job = self._run.job
        after = order.round(round) if round < order.rounds else None
        return checkpoint.Position(
            round=round,
            epoch=after.epoch if after else order.round(round - 1).epoch + 1,
            index_in_epoch=after.index_in_epoch if after else 0,
            seed=job.seed,
            sample_count=job.sample_count,
            batch_size=job.batch_size,
            program=self._run.digest,
            data=self._run.data_digest,
            staleness=job.staleness,
        )

    def write_final(self) -> Any:
        return save_model(self._run.folder.path, self._run.model.weights())

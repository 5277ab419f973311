"""Checkpoints while training goes on: collected and written in the background, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from potluck.coordinator.contexts import Session
from potluck.coordinator.run_folder.folder import save_model
from potluck.errors import PotluckError
from potluck.metrics.records import CheckpointRecord, IncidentRecord, Record
from potluck.tensors import checkpoint
from potluck.tensors.state_transfer import receive_state

GO_ON = "the last checkpoint is intact: go on with --resume"


class Checkpointer:
    """Collects every stage's state after a round and writes a checkpoint. A full disk does not stop training."""

    def __init__(self, session: Session, say: Callable[[Record], None]) -> None:
        self.s, self._say = session, say
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="potluck-saver")
        self._jobs: list[Future[None]] = []
        self._reporters = [d for d in session.plan.devices if any(session.layout.reported_names(d))]
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
            checkpoint.mark_best(self.s.folder.path, best)
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
            reports.append(receive_state(self.s.link, device, round, self.s.timeout_s))
            self.s.model.check(device, reports[-1], *self.s.layout.reported_names(device))
        with self._lock:
            if self._over:
                return
            self.s.model.take(round, reports)
        self._write(round, order, started)

    def save_again(self, round: int, order: Any) -> None:
        """Starts a checkpoint of what was collected already."""
        self._jobs.append(self._pool.submit(self._write, round, order, time.monotonic()))

    def _write(self, round: int, order: Any, started: float) -> None:
        position = self._position(round, order)
        weights = self.s.model.weights()
        try:
            checkpoint.write(self.s.folder.path, position, weights, self.s.model.optimizer, keep=self.s.job.keep)
        except PotluckError as error:
            self._warn(round, error)
            return
        self.s.roster.what_now = GO_ON
        size = sum(t.nbytes for t in weights.values()) + sum(t.nbytes for t in self.s.model.optimizer.values())
        now = time.monotonic()
        self._say(CheckpointRecord(round=round, bytes=size, seconds=now - started, at_s=now - self.s.started_s))

    def _warn(self, round: int, error: PotluckError) -> None:
        self._say(
            IncidentRecord(
                kind="checkpoint", round=round, device=None, what=str(error), action="training goes on without it",
                at_s=time.monotonic() - self.s.started_s,
            )
        )  # fmt: skip

    def _position(self, round: int, order: Any) -> checkpoint.Position:
        job = self.s.job
        after = order.round(round) if round < order.rounds else None
        return checkpoint.Position(
            round=round,
            epoch=after.epoch if after else order.round(round - 1).epoch + 1,
            index_in_epoch=after.index_in_epoch if after else 0,
            seed=job.seed,
            sample_count=job.sample_count,
            batch_size=job.batch_size,
            program=self.s.digest,
            data=self.s.data_digest,
        )

    def write_final(self) -> Any:
        return save_model(self.s.folder.path, self.s.model.weights())

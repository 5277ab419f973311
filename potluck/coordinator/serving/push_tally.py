"""How far a run around a parameter server is, and what is said of it. Every method may be called from any thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from potluck.errors import PotluckError
from potluck.job.job import Job
from potluck.metrics.records import (
    IncidentRecord,
    PushRecord,
    Record,
    RecordLog,
    RunEnded,
    RunStarted,
    SyncAdopted,
)
from potluck.paramserver.messages import PushWords
from potluck.paramserver.server import Reply


class SyncTally:
    """Samples that everybody together has trained, last losses, and records of all that happens."""

    def __init__(
        self, job: Job, records: RecordLog, show: Callable[[Record], None], progress: Callable[[str], None]
    ) -> None:
        """`show` gets every record, `progress` words for the user."""
        self._job, self._records, self._show, self._progress = job, records, show, progress
        self._lock = threading.RLock()
        self._losses: dict[str, float] = {}  # last reported
        self.owned: dict[str, int] = {}  # samples of each device
        self._unwritten = False  # the disk is full, and that was said
        self.samples = self.before = 0  # trained in all, and before this began
        self.total = self.epoch_samples = 0
        self.started_s = time.monotonic()

    @property
    def round(self) -> int:
        """A round is a batch, whoever trained it."""
        return self.samples // self._job.batch_size

    @property
    def batches_left(self) -> int:
        """Batches until enough samples are trained."""
        return -(-max(0, self.total - self.samples) // self._job.batch_size)

    @property
    def rounds_an_epoch(self) -> int:
        """Batches of all samples together."""
        return max(1, self.epoch_samples // self._job.batch_size)

    @property
    def epoch(self) -> int:
        """Passes over all samples together."""
        return self.samples // max(1, self.epoch_samples)

    @property
    def samples_per_s(self) -> float:
        """Since this began."""
        seconds = self.seconds()
        return (self.samples - self.before) / seconds if seconds > 0 else 0.0

    def seconds(self) -> float:
        """Since this began."""
        return time.monotonic() - self.started_s

    def begins(self, program: str, policy: str, samples: Mapping[str, int], slowest_s: float) -> None:
        """Training begins now, with these devices and their samples."""
        self.started_s = time.monotonic()
        self.say(
            RunStarted(
                round=self.round, rounds=-(-self.total // self._job.batch_size), samples=self.epoch_samples,
                batch_size=self._job.batch_size, micro_batch_size=self._job.batch_size, seed=self._job.seed,
                program=program, devices=tuple(samples),
            )
        )  # fmt: skip
        words = f"a step takes {slowest_s * 1000:.3g} ms on the slowest of {len(samples)} devices"
        self.say(SyncAdopted(round=self.round, policy=policy, samples=dict(samples), reason=words, at_s=self.seconds()))

    def pushed(self, said: PushWords, reply: Reply) -> None:
        """A push counts, or was left out; what was left out is not trained."""
        push, pace = said.push, reply.paces.get(said.push.worker)
        with self._lock:
            if reply.status == "applied":
                self.samples += push.samples
                loss = push.pulled_loss if push.pulled_loss is not None else push.loss
                if loss is not None:
                    self._losses[push.worker] = loss
            self.say(
                PushRecord(
                    version=reply.version, device=push.worker, round=self.round, epoch=self.epoch, steps=push.steps,
                    samples=push.samples, loss=push.loss,
                    skipped=reply.reason if reply.status == "skipped" else "",
                    reason=pace.reason if pace is not None else reply.reason, cpu_s=said.cpu_s,
                    at_s=self.seconds(), held_out_loss=said.held_out.loss if said.held_out else None,
                    held_out_samples=said.held_out.samples if said.held_out else 0,
                    held_out_version=said.held_out.version if said.held_out else 0,
                )
            )  # fmt: skip

    def forget(self, device: str) -> None:
        """Its last loss is of no use any more."""
        with self._lock:
            self._losses.pop(device, None)

    def loss_of(self, devices: Sequence[str]) -> float:
        """Of the weights that they pulled last, on the samples of all of them: who has more counts more."""
        with self._lock:
            known = {device: self._losses[device] for device in devices if device in self._losses}
        whole = sum(self.owned.get(device, 1) for device in known)
        return sum(loss * self.owned.get(device, 1) for device, loss in known.items()) / whole if whole else math.nan

    def incident(
        self, kind: Literal["joined", "left", "lost"], device: str, what: str, action: str, samples: int = 0
    ) -> None:
        """Somebody came or went."""
        self.say(
            IncidentRecord(
                kind=kind, round=self.round, device=device, what=what, action=action, at_s=self.seconds(),
                samples=samples,
            )
        )  # fmt: skip

    def ended(self, reason: Literal["finished", "stopped", "early", "failed"], words: str = "") -> None:
        seconds = self.seconds()
        self.say(RunEnded(round=self.round, reason=reason, message=words, seconds=seconds, at_s=seconds))

    def no_room(self, error: PotluckError) -> None:
        """Something cannot be written now; said once, until something can."""
        with self._lock:
            said, self._unwritten = self._unwritten, True
        if not said:
            self._progress(f"{error}; training goes on, and what could not be written is tried again")

    def say(self, record: Record) -> None:
        """Writes a record and shows it to everybody who watches."""
        with self._lock:
            try:
                self._records.append(record)
                self._unwritten = False
            except PotluckError as error:
                self.no_room(error)
            self._show(record)

"""What a server does beside answering: records of pushes, and snapshots of the weights that it could restart from."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from potluck.coordinator.serving.push_threads import Serving
from potluck.coordinator.serving.snapshot_writer import SnapshotWriter
from potluck.metrics.records import RECORDS, PushRecord, RecordLog
from potluck.paramserver.messages import PushWords
from potluck.paramserver.server import ParameterServer, Reply
from potluck.tensors import checkpoint


class PairsKeeping:
    """As `potluck/coordinator/serving/server_keeping.py`, without a job: nothing is judged, and no checkpoint is for a
    user."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._records, self._lock = folder, RecordLog(folder / RECORDS), threading.Lock()
        self.pushes = self.snapshots = 0
        self.problems: list[str] = []  # of any thread
        self._saver: SnapshotWriter | None = None

    def save(self, version: int, tensors: Mapping[str, torch.Tensor], velocity: Mapping[str, torch.Tensor]) -> None:
        """A snapshot, on disk when this returns."""
        position = checkpoint.Position(
            round=version, epoch=0, index_in_epoch=0, seed=0, sample_count=1, batch_size=1, program=""
        )
        checkpoint.write(self._folder / "server", position, tensors, velocity, keep=1)
        self.snapshots += 1

    def pushed(self, said: PushWords, reply: Reply) -> None:
        """Somebody pushed; from any thread."""
        push = said.push
        if reply.status != "applied":
            self.problems.append(f"push {push.sequence} of {push.worker} is {reply.status}: {reply.reason}")
        with self._lock:
            self.pushes += 1
            self._records.append(
                PushRecord(
                    version=reply.version, device=push.worker, round=self.pushes, epoch=0, steps=push.steps,
                    samples=push.samples, loss=push.loss, skipped="", reason=reply.reason, cpu_s=said.cpu_s,
                    at_s=time.monotonic(),
                )
            )  # fmt: skip
        if self._saver is not None:
            self._saver.wake()

    def lost(self, worker: str, incarnation: int, why: str) -> None:
        """A client's link broke."""
        self.problems.append(f"{worker} is lost: {why}")

    def failed(self, error: Exception) -> None:
        """Something else went wrong."""
        self.problems.append(repr(error))

    def serve(self, server: ParameterServer, serving: Serving) -> None:
        """Saves from now on, whenever somebody's pushes are not in a snapshot yet."""
        self._saver = SnapshotWriter(server, serving.save, self.failed, self.failed)

    def close(self) -> None:
        """Ends it."""
        if self._saver is not None:
            self._saver.close()
        self._records.close()

"""A folder, a port and the processes of one run around a parameter server, for tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from potluck.coordinator.run_folder.push_log import PUSHES, entries
from potluck.datasets.digits import digits
from potluck.metrics.records import RECORDS, EvaluationRecord, IncidentRecord, read
from potluck.paramserver.applied_pushes import Entry
from tests.process.agents import ROOT, ended, free_port

PATIENT_S = 120.0
JOB = """
import torch
from torch import nn
import potluck
from potluck.datasets.digits import digits

_, _, images, labels = (torch.from_numpy(a) for a in digits())


def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).float().mean().item()


job = potluck.Job(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    loss=nn.functional.cross_entropy, optimizer=potluck.SGD(lr=0.2), data="digits", eval_data=(images, labels),
    metrics={"accuracy": accuracy}, batch_size=16, epochs=EPOCHS, seed=3,
)
"""


class Site:
    """A folder with a job and three shards, a port, and the processes of one run."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.run, self.port = folder, folder / "run", free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "job.py").write_text(JOB.replace("EPOCHS", str(epochs)))
        images, labels, _, _ = digits()
        order = np.argsort(labels, kind="stable")  # each device has digits that the others hardly know
        for name, part in zip("abc", np.array_split(order, 3), strict=True):
            np.savez(folder / f"{name}.npz", input=images[part], label=labels[part])

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "potluck", *arguments], cwd=self.folder, env=environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def train(self, sync: str, devices: int, *more: str) -> subprocess.Popen[bytes]:
        where = ["--listen", f"127.0.0.1:{self.port}", "--devices", str(devices), "--no-local"]
        return self.start("train", "job.py", *where, "--sync", sync, "--run-dir", str(self.run), *more)

    def join(self, name: str, *more: str, data: str | None = None) -> subprocess.Popen[bytes]:
        where = [f"127.0.0.1:{self.port}", "--name", name, "--threads", "1", "--hold", "60s"]
        return self.start("join", *where, "--data", data or f"digits={name}.npz", *more)

    @property
    def pushes(self) -> list[Entry]:
        return entries(self.run / PUSHES)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def incidents(self) -> list[IncidentRecord]:
        return [r for r in read(self.run / RECORDS) if isinstance(r, IncidentRecord)]

    def accuracy(self) -> float:
        return [r for r in read(self.run / RECORDS) if isinstance(r, EvaluationRecord)][-1].metrics["accuracy"]


@contextlib.contextmanager
def site(folder: Path, epochs: int) -> Iterator[Site]:
    it = Site(folder, epochs)
    with ended(it):
        yield it


def pushed_by(it: Site, worker: str) -> int:
    return sum(entry.push.worker == worker for entry in it.pushes)

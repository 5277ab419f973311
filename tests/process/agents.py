"""Agents started by a test: real processes, ended by the test, whatever happens."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch

from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.tensors.checkpoint import load, newest

ROOT = Path(__file__).parents[2]


def final_state(run_dir: Path) -> dict[str, torch.Tensor]:
    """Weights and optimizer state of a run's newest checkpoint."""
    found = newest(run_dir)
    assert found is not None
    _, weights, optimizer = load(found.path)
    return {**weights, **optimizer}


def free_port() -> int:
    """A port that nobody listens on, nor is given by chance before somebody does: below those the system hands out."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until(condition: Callable[[], bool], what: str, patient_s: float) -> None:
    """Waits for something to happen."""
    deadline = time.monotonic() + patient_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {patient_s} s"
        time.sleep(0.05)


class Processes(Protocol):
    """Processes of a test, and what they said."""

    processes: list[subprocess.Popen[bytes]]

    @property
    def log(self) -> str:
        """Of all of them."""


@contextlib.contextmanager
def ended(it: Processes) -> Iterator[None]:
    """Ends them at the end; where something was not as expected, with what they said."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{it.log}") from error
    finally:
        for process in it.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def fleet_of(modules: Sequence[Sequence[str]]) -> Iterator[tuple[LiveFleet, list[subprocess.Popen[bytes]]]]:
    """A live fleet of agents d0, d1, …, each started as `python -m MODULE ARGS… ADDRESS NAME`."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(address: str) -> None:
        for index, module in enumerate(modules):
            command = [sys.executable, "-m", *module, address, f"d{index}"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))

    options = Options(joined=len(modules), join_timeout_s=60.0, timeout_s=60.0, listening=start)
    try:
        with LiveFleet(None, options) as live:
            yield live, processes
        for process in processes:
            process.wait(20)
    finally:
        for process in processes:
            process.kill()
            process.wait()

"""Peers as real programs: one rank on every device of a testbed, and what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed import Testbed
from benchmarks.testbed.agents import environment
from benchmarks.throughput.cells import DDP, Cell

PORT = 29500
LOOK_S = 0.1
READY_S = 240.0  # torch alone takes 17 s to start on an eighth of a core
IDEAL_S = 20.0


@dataclass(frozen=True)
class Measured:
    """Samples per second, or why there are none."""

    samples_per_s: float | None
    error: str | None = None


def peer(bed: Testbed, cell: Cell, system: str, rounds: int, timeout_s: float) -> Measured:
    """Trains the cell with a peer system on all devices."""
    if system == DDP:
        program = ["benchmarks.peers.ddp"]
    else:
        program = ["benchmarks.peers.pipelining", "--schedule", system.removeprefix("pipelining-")]
    first = bed.address(bed.devices[0])
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            *program, "--model", cell.model, "--batch", str(cell.batch), "--rounds", str(rounds), "--warm-up", "1",
            "--timeout-s", str(timeout_s),
        ]  # fmt: skip
        place = {"WORLD_SIZE": str(len(bed.devices)), "MASTER_ADDR": first, "MASTER_PORT": str(PORT)}
        ranks = {
            device: _start(bed, device, arguments, Path(folder), {**place, "RANK": str(rank)})
            for rank, device in enumerate(bed.devices)
        }
        error = _wait(ranks, Path(folder), READY_S + timeout_s)
        if error is not None:
            return Measured(None, f"out of memory: {error}" if sum(map(bed.oom_kills, bed.devices)) else error)
        return Measured(_outcome(Path(folder), bed.devices[0]))


def ideal(bed: Testbed, cell: Cell, seconds: float = IDEAL_S) -> dict[str, float]:
    """Samples per second of a plain trainer in each device, all at once, each at its fastest micro-batch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = folder / "start"
        arguments = [
            "benchmarks.peers.single", "--model", cell.model, "--batch", str(cell.batch), "--seconds", str(seconds),
            "--start-file", str(start), "--timeout-s", str(READY_S),
        ]  # fmt: skip
        trainers = {
            device: _start(bed, device, [*arguments, "--ready-file", str(folder / f"{device}.ready")], folder, {})
            for device in bed.devices
        }
        deadline = time.monotonic() + READY_S
        while not all((folder / f"{device}.ready").exists() for device in bed.devices):
            if time.monotonic() > deadline or any(t.poll() for t in trainers.values()):
                raise TimeoutError(f"the plain trainers did not get ready: {_last_words(folder)}")
            time.sleep(LOOK_S)
        start.touch()
        error = _wait(trainers, folder, seconds + READY_S)
        if error is not None:
            raise RuntimeError(f"a plain trainer failed: {error}")
        return {device: _outcome(folder, device) for device in bed.devices}


def _start(
    bed: Testbed, device: str, arguments: Sequence[str], folder: Path, place: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", *arguments, "--out", str(folder / f"{device}.json")]
    with (folder / f"{device}.log").open("ab") as log:
        env = {**environment(), **place, "TP_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
        return bed.start(device, command, env=env, stdout=log, stderr=subprocess.STDOUT)


def _wait(processes: Mapping[str, subprocess.Popen[bytes]], folder: Path, timeout_s: float) -> str | None:
    """None once all have ended well; else why not, and all are ended."""
    deadline = time.monotonic() + timeout_s
    failed = None
    while failed is None and any(p.poll() is None for p in processes.values()):
        if time.monotonic() > deadline:
            failed = f"out of time after {timeout_s:.0f} s"
        elif any(p.poll() for p in processes.values()):
            failed = _last_words(folder)
        time.sleep(LOOK_S)
    if failed is None and any(p.returncode for p in processes.values()):
        failed = _last_words(folder)
    for process in processes.values():
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait(10)
    return failed


def _last_words(folder: Path) -> str:
    lines = [line for log in sorted(folder.glob("*.log")) for line in log.read_text(errors="replace").splitlines()[-1:]]
    return "; ".join(lines)[:300] or "no word"


def _outcome(folder: Path, device: str) -> float:
    return float(json.loads((folder / f"{device}.json").read_text())["samples_per_s"])

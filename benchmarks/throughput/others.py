"""Peers as real programs: one rank on every device of a testbed, and what they measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.testbed import Testbed
from benchmarks.testbed.agents import environment
from benchmarks.throughput.cells import DDP, IDEAL_S, PIPELINING, Cell

PORT = 29500
LOOK_S = 0.1
ROUNDS = 8  # at most, of a peer
TIMEOUT_S = 400.0  # longest wait for anything that a peer does: it ends by itself then
RUN_S = 1800.0  # of one peer in all, as for ours
END_S = 60.0  # for what was killed


@dataclass(frozen=True)
class Measured:
    """Samples per second, or why there are none."""

    samples_per_s: float | None
    error: str | None = None


def peer(bed: Testbed, cell: Cell, system: str, micro_batches: Sequence[int], most_s: float, *more: str) -> Measured:
    """Trains the cell with a peer system on all devices for about so long, told so many options more."""
    if system == DDP:
        program = ["benchmarks.peers.ddp"]
    else:
        program = ["benchmarks.peers.pipelining", "--schedule", system.removeprefix(f"{PIPELINING}-")]
    program += ["--rounds", str(ROUNDS), "--most-s", str(most_s), "--warm-up", "1", *more]
    place = {
        "WORLD_SIZE": str(len(bed.devices)), "MASTER_ADDR": bed.address(bed.devices[0]), "MASTER_PORT": str(PORT)
    }  # fmt: skip
    places = {device: {**place, "RANK": str(rank)} for rank, device in enumerate(bed.devices)}
    before = sum(map(bed.oom_kills, bed.devices))
    try:
        rates = _train(bed, cell, program, micro_batches, places)
    except RuntimeError as error:
        killed = sum(map(bed.oom_kills, bed.devices)) > before
        return Measured(None, f"out of memory: {error}" if killed else str(error))
    return Measured(rates[bed.devices[0]])


class Ideal:
    """Plain trainers, one in each device, that train all at once whenever they are asked to: the sum of what plain
    PyTorch reaches, on the machine as it is in that minute. A system with faster kernels can exceed it.

    They train at the micro-batch that suits them best, or at the `brief` one, which is soon done on any device.
    """

    def __init__(
        self, bed: Testbed, cell: Cell, micro_batch: int, brief: int | None = None, seconds: float = IDEAL_S
    ) -> None:
        self._bed, self._cell, self._micro_batch, self._seconds = bed, cell, micro_batch, seconds
        self.brief = micro_batch if brief is None else brief
        self._bursts = 0

    @property
    def is_brief(self) -> bool:
        """Whether the micro-batch that suits them best is soon done, too."""
        return self.brief == self._micro_batch

    def __enter__(self) -> Ideal:
        self._scope = contextlib.ExitStack()
        with self._scope:
            self._folder = Path(self._scope.enter_context(tempfile.TemporaryDirectory()))
            program = ["benchmarks.peers.single", "--bursts", "--seconds", str(self._seconds)]
            arguments = _arguments(program, self._cell, [self._micro_batch])
            with unhurried(self._bed):
                self._processes = {d: _start(self._bed, d, arguments, self._folder, {}) for d in self._bed.devices}
                self._scope.callback(_end, self._processes.values())
                _until(
                    lambda: all((self._folder / f"{d}.ready").exists() for d in self._processes),
                    self._processes, self._folder,
                )  # fmt: skip
            self._make_room()
            self._scope = self._scope.pop_all()
        return self

    def _make_room(self) -> None:
        """Gives devices as much more memory as the trainers take of it."""
        for device in self._bed.fleet.devices:
            if device.memory_bytes:
                taken = sum(psutil.Process(pid).memory_info().rss for pid in self._bed.processes(device.name))
                self._bed.set_memory(device.name, device.memory_bytes + 2 * taken)

    def __exit__(self, *_: object) -> None:
        (self._folder / "start.end").touch()
        self._scope.close()
        for device in self._bed.fleet.devices:
            self._bed.set_memory(device.name, device.memory_bytes or None)

    def burst(self, micro_batch: int | None = None) -> float:
        """Samples per second of all together, at the size that suits them best if no other is given."""
        self._bursts += 1
        start = self._folder / f"start.{self._bursts}"
        part = start.with_suffix(".part")
        part.write_text(str(micro_batch or ""))
        part.rename(start)  # they look for it all the time, and must not see it empty
        _until(lambda: all(path.exists() for path in self._files()), self._processes, self._folder)
        return sum(float(outcome["samples_per_s"]) for outcome in self.outcomes())

    def outcomes(self) -> list[dict[str, Any]]:
        """What each trainer says of the last burst."""
        return [json.loads(path.read_text()) for path in self._files()]

    def _files(self) -> list[Path]:
        return [self._folder / f"{device}.json.{self._bursts}" for device in self._processes]


def _train(
    bed: Testbed, cell: Cell, program: Sequence[str], micro_batches: Sequence[int],
    places: Mapping[str, Mapping[str, str]],
) -> dict[str, float]:  # fmt: skip
    """Samples per second that each device tells of. They start without a quota, as torch alone takes long to load."""
    arguments = _arguments(program, cell, micro_batches)
    with tempfile.TemporaryDirectory() as name, unhurried(bed) as hurry:
        folder = Path(name)
        processes = {d: _start(bed, d, arguments, folder, place) for d, place in places.items()}
        try:
            _until(lambda: all((folder / f"{d}.ready").exists() for d in processes), processes, folder)
            hurry()
            (folder / "start").touch()
            # Python alone takes 10 s to end on 0.1 core: nobody waits for that.
            _until(lambda: all((folder / f"{d}.json").exists() for d in processes), processes, folder, RUN_S)
        finally:
            for device in processes:
                bed.set_quota(device, None)  # also what has been killed takes CPU time until it is gone
            _end(processes.values())
        return {device: _outcome(folder, device) for device in processes}


def _arguments(program: Sequence[str], cell: Cell, micro_batches: Sequence[int]) -> list[str]:
    return [
        *program, "--model", cell.model, "--batch", str(cell.batch), "--timeout-s", str(TIMEOUT_S), "--micro-batches",
        ",".join(map(str, micro_batches)),
    ]  # fmt: skip


def _end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    try:
        for process in processes:
            process.wait(END_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"what was killed is not gone after {END_S:.0f} s") from None


@contextlib.contextmanager
def unhurried(bed: Testbed) -> Iterator[Callable[[], None]]:
    """Devices without a quota and with lines that carry anything, until what is given back is called, or the context
    ends: starting up is not what is measured."""
    lines = {device: bed.bandwidth(device) for device in bed.devices}

    def hurry() -> None:
        for device in bed.fleet.devices:
            bed.set_quota(device.name, device.speed)
            if bed.bandwidth(device.name) != lines[device.name]:
                bed.set_bandwidth(device.name, lines[device.name])

    for device in bed.devices:
        bed.set_quota(device, None)
        bed.set_bandwidth(device, None)
    try:
        yield hurry
    finally:
        hurry()


def _start(
    bed: Testbed, device: str, arguments: Sequence[str], folder: Path, place: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    files = ["--out", f"{device}.json", "--ready-file", f"{device}.ready", "--start-file", "start"]
    paths = [str(folder / word) if not word.startswith("--") else word for word in files]
    command = [sys.executable, "-W", "ignore", "-m", *arguments, *paths]
    with (folder / f"{device}.log").open("ab") as log:
        env = {**environment(), **place, "GLOO_SOCKET_IFNAME": "eth0"}
        return bed.start(device, command, env=env, stdout=log, stderr=subprocess.STDOUT)


def _until(
    condition: Callable[[], bool], processes: Mapping[str, subprocess.Popen[bytes]], folder: Path,
    timeout_s: float = TIMEOUT_S,
) -> None:  # fmt: skip
    """Waits for the condition; a RuntimeError if a process fails before, or time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if any(p.poll() for p in processes.values()):
            raise RuntimeError(_last_words(folder))
        if time.monotonic() > deadline:
            raise RuntimeError(f"out of time after {timeout_s:.0f} s")
        time.sleep(LOOK_S)


def _last_words(folder: Path) -> str:
    lines = [line for log in sorted(folder.glob("*.log")) for line in log.read_text(errors="replace").splitlines()[-1:]]
    return "; ".join(lines)[:300] or "no word"


def _outcome(folder: Path, device: str) -> float:
    return float(json.loads((folder / f"{device}.json").read_text())["samples_per_s"])

"""One policy on a testbed: `potluck train --sync`, watched until the held-out loss is low enough."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.sync.account import busy, samples_per_s
from benchmarks.sync.ledger import audited
from benchmarks.testbed import Testbed, join_all
from benchmarks.testbed.agents import environment, start_potluck
from benchmarks.throughput.others import unhurried
from potluck.coordinator.run_folder.push_log import PUSHES, entries
from potluck.metrics.records import RECORDS, EvaluationRecord, PushRecord, Record, RunStarted, read_from

LOOK_S = 0.05
START_S = 120.0
LOADING = b"devices read their data"  # what the coordinator says then
JOB = Path(__file__).with_name("job.py")
# Batches between two looks at the held-out loss, by the machine that the workers share. Who waits trains fewer batches
# in a second: each is looked at about every 2 to 5 s, as targets count as reached at the look that finds them so.
EVERY = {"bsp": 9, "ssp": 12, "adacomm": 60, "local": 120, "adsp": 200, "ours": 200}
LONE_S = 10.0


@dataclass
class Course:
    """What became of one policy."""

    reached_s: list[float | None] = field(default_factory=list)  # when each target was reached
    had_s: float = 0.0  # to reach them
    pushes: int = 0
    lost: int = 0  # pushes; see benchmarks/sync/ledger.py
    doubled: int = 0
    samples_per_s: float = 0.0
    busy: float = 0.0  # CPU seconds of training, of what all workers could have spent
    curve: list[tuple[float, float]] = field(default_factory=list)
    stolen: float = 0.0  # part of the machine's time that its host gave to others
    problem: str = ""


class Setting(NamedTuple):
    """What is trained, and how."""

    workload: str
    rate: float  # of learning
    seed: int

    def environment(self, test: Path, policy: str) -> dict[str, str]:
        """What the job reads from its environment."""
        return {
            "SYNC_WORKLOAD": self.workload, "SYNC_TEST": str(test), "SYNC_RATE": str(self.rate),
            "SYNC_SEED": str(self.seed), "SYNC_EVERY": str(EVERY[policy]),
        }  # fmt: skip


def course(
    bed: Testbed, policy: str, shards: Path, folder: Path, targets: Sequence[float], setting: Setting, most_s: float
) -> Course:
    """Trains until the last target is reached, or for so long."""
    found = Course(reached_s=[None] * len(targets))
    folder.mkdir(parents=True)
    verb = ["train", str(JOB), "--sync", policy, "--run-dir", str(folder / "run")]
    with (folder / "coordinator.log").open("ab") as log:
        env = setting.environment(shards / "test.npz", policy) | {"COLUMNS": "100"}
        coordinator = start_potluck(bed, verb, stdout=log.fileno(), stderr=subprocess.STDOUT, env=env)
    more = {device: ["--data", f"own={shards / device}.npz"] for device in bed.devices}
    try:
        with unhurried(bed):
            join_all(bed, logs=folder, more=more)
            _wait(coordinator, lambda: LOADING in (folder / "coordinator.log").read_bytes())
        # By their quotas from here on: they measure how long a step takes.
        _wait(coordinator, lambda: _has_begun(folder / "run" / RECORDS))
        _watch(coordinator, folder / "run", found, targets, most_s)
    except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
        found.problem = str(error)
    finally:
        for device in bed.devices:
            bed.kill(device)
        coordinator.kill()
        coordinator.wait(30.0)
    _account(found, folder / "run", {d.name: d.speed for d in bed.fleet.devices})
    return found


def _has_begun(records: Path) -> bool:
    return records.exists() and any(isinstance(r, RunStarted) for r in read_from(records, 0)[0])


def _wait(coordinator: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if coordinator.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the coordinator did not begin")
        time.sleep(LOOK_S)


def _watch(
    coordinator: subprocess.Popen[bytes], run: Path, found: Course, targets: Sequence[float], most_s: float
) -> None:
    offset, deadline = 0, time.monotonic() + most_s
    while time.monotonic() < deadline and coordinator.poll() is None:
        records, offset = read_from(run / RECORDS, offset)
        _take(found, records)
        if found.curve and min(loss for _, loss in found.curve) <= min(targets):
            break
        time.sleep(LOOK_S)
    found.reached_s = [next((at for at, loss in found.curve if loss <= target), None) for target in targets]
    if coordinator.poll() is not None:
        raise RuntimeError(f"the coordinator ended with code {coordinator.returncode}")
    for process in (coordinator.pid, *_children(coordinator.pid)):
        _interrupt(process)
    coordinator.wait(60.0)


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def _interrupt(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        return


def _take(found: Course, records: Sequence[Record]) -> None:
    for record in records:
        if isinstance(record, EvaluationRecord):
            found.curve.append((record.at_s, record.loss))
        elif isinstance(record, PushRecord):
            found.pushes += 1


def _account(found: Course, run: Path, cores: Mapping[str, float]) -> None:
    """How busy devices were, and whether every push counted once."""
    if not (run / RECORDS).exists():
        return
    pushes = [r for r in read_from(run / RECORDS, 0)[0] if isinstance(r, PushRecord)]
    found.busy, found.samples_per_s = busy(pushes, cores), samples_per_s(pushes, tuple(cores))
    found.lost, found.doubled = audited(entries(run / PUSHES), pushes)


class Alone(NamedTuple):
    """What a device does by itself."""

    samples_per_s: float
    cpu_s_per_s: float


def lone_rates(bed: Testbed, shards: Path, workload: str, seconds: float) -> dict[str, Alone]:
    """What every device does while each trains by itself and all do so at once: they share a machine."""
    began = {}
    for device in bed.devices:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.sync.alone"]
        command += ["--data", f"{shards / device}.npz", "--seconds", str(seconds), "--workload", workload]
        began[device] = bed.start(device, command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with unhurried(bed):
        for process in began.values():
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise RuntimeError("a lone worker did not begin")
    for process in began.values():
        if process.stdin is not None:
            process.stdin.close()  # they wait for this
    said = {d: json.loads(process.stdout.read()) for d, process in began.items() if process.stdout is not None}
    return {d: Alone(float(words["samples_per_s"]), float(words["cpu_s_per_s"])) for d, words in said.items()}


class Lone:
    """What devices train by themselves, before and after everything that it is compared with. Machines have moods that
    change within seconds, so everything is compared with the mean of all looks."""

    def __init__(self, bed: Testbed, shards: Path, workload: str) -> None:
        self._bed, self._shards, self._workload = bed, shards, workload
        self.looks: list[dict[str, Alone]] = []

    def look(self) -> None:
        """Lets each train by itself for a while."""
        self.looks.append(lone_rates(self._bed, self._shards, self._workload, LONE_S))

    @property
    def rates(self) -> list[dict[str, float]]:
        """Samples a second of every device, at each look."""
        return [{device: alone.samples_per_s for device, alone in look.items()} for look in self.looks]

    @property
    def samples_per_s(self) -> float:
        """Of all together, usually."""
        return statistics.fmean(sum(rates.values()) for rates in self.rates) if self.looks else 0.0

    @property
    def busy(self) -> float:
        """CPU seconds of training, of those that all devices had: what plain PyTorch gets out of their quotas."""
        cores = sum(device.speed for device in self._bed.fleet.devices)
        spent = [sum(alone.cpu_s_per_s for alone in look.values()) for look in self.looks]
        return statistics.fmean(spent) / cores if spent else 0.0

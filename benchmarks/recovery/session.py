"""One run on a testbed, with something happening to its devices on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.testbed import Testbed, coordinator_address, join_all
from benchmarks.testbed.agents import environment
from benchmarks.throughput.others import unhurried
from potluck.control.audit import audit
from potluck.metrics.records import RECORDS, IncidentRecord, PlanAdopted, Record, read_from
from potluck.recover.checkpoint import load, newest
from potluck.types import COORDINATOR, Plan, RoundRecord

START_S, RUN_S = 240.0, 400.0
LOOK_S = 0.05
Deed = Callable[["Happening"], None]


@dataclass
class Happening:
    """What a scenario may lay hands on."""

    bed: Testbed
    agents: dict[str, subprocess.Popen[bytes]]
    logs: Path

    def leave(self, device: str) -> None:
        """Asks a device to leave, as Ctrl-C does."""
        for process in self.bed.processes(device):
            cmdline = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"potluck" in cmdline and b"join" in cmdline:
                os.kill(process, signal.SIGINT)

    def join(self, device: str) -> None:
        """Starts `potluck join` on a device."""
        self.agents |= join_all(self.bed, logs=self.logs, devices=[device])


@dataclass
class Outcome:
    """What became of a run."""

    lost: int = 0
    doubled: int = 0
    finished: bool = False
    problem: str = ""
    fault_s: float | None = None  # when it happened, on the machine's monotonic clock
    began_s: float = 0.0
    incidents: list[IncidentRecord] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    committed_s: list[float] = field(default_factory=list)  # when each of these was seen
    plans: list[Plan] = field(default_factory=list)
    cpu_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)  # seconds until all were here, and ready
    state: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def unsplit(self) -> bool:
        """Whether no stage was ever shared: then nothing was added up in another order."""
        return all(len(stage.group) == 1 for plan in self.plans for stage in plan.stages)


@dataclass(frozen=True)
class Setup:
    """What is trained, by what plan, for how long."""

    model: str
    plan: Plan
    rounds: int
    heavy: bool = False
    copies: bool = True


def run(bed: Testbed, setup: Setup, folder: Path, deed: Deed | None, after: int, seed: int) -> Outcome:
    """Trains, and lets something happen at a random moment after so many rounds."""
    folder.mkdir(parents=True)
    plan_file = folder / "plan.json"
    plan_file.write_bytes(msgspec.json.encode(setup.plan))
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.recovery.coordinator"]
    command += ["--listen", coordinator_address(bed), "--devices", str(len(bed.devices)), "--model", setup.model]
    command += ["--plan", str(plan_file), "--run-dir", str(folder / "run"), "--rounds", str(setup.rounds)]
    command += ["--heavy"] * setup.heavy + ["--no-copies"] * (not setup.copies)
    log = (folder / "coordinator.log").open("wb")
    with log:
        coordinator = bed.start(COORDINATOR, command, env=environment(), stdout=subprocess.PIPE, stderr=log)
    outcome, started = Outcome(), time.monotonic()
    try:
        with unhurried(bed):
            happening = Happening(bed, join_all(bed, logs=folder), folder)
            _line(coordinator)
        outcome.phases["here"] = time.monotonic() - started
        outcome.began_s = float(_line(coordinator)["ready_s"])
        outcome.phases["ready"] = time.monotonic() - started
        _watch(coordinator, setup, folder, outcome, happening, deed, after, random.Random(seed))  # noqa: S311 - a moment, not a secret
        coordinator.wait(30.0)
    except (TimeoutError, subprocess.TimeoutExpired, RuntimeError) as error:
        outcome.problem = f"{error}; {_last(folder)}"
    finally:
        bed.restore()
        for device in (COORDINATOR, *bed.devices):
            bed.thaw(device) if device != COORDINATOR else None
            bed.kill(device)
        coordinator.wait(30.0)
    outcome.phases["over"] = time.monotonic() - started
    if not outcome.problem:
        _judge(coordinator, folder / "run", outcome)
    return outcome


def _line(coordinator: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert coordinator.stdout is not None
    line = coordinator.stdout.readline()
    if not line:
        raise RuntimeError("the coordinator ended before it was ready")
    found: dict[str, Any] = json.loads(line)
    return found


def _watch(
    coordinator: subprocess.Popen[bytes], setup: Setup, folder: Path, outcome: Outcome, happening: Happening,
    deed: Deed | None, after: int, chance: random.Random,
) -> None:  # fmt: skip
    records, offset = folder / "run" / RECORDS, 0
    deadline = time.monotonic() + RUN_S
    due: float | None = None
    cpu: float | None = None
    while coordinator.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it took more than {RUN_S:.0f} s")
        if records.exists():
            found, offset = read_from(records, offset)
            _take(found, outcome)
        done = len({r.round for r in outcome.rounds})
        if cpu is None and done >= 2:
            cpu = sum(happening.bed.cpu_seconds(d) for d in happening.bed.devices)
        if deed is not None and done >= after and due is None:
            usual = max(r.seconds for r in outcome.rounds[-2:])
            due = time.monotonic() + chance.random() * usual
        if deed is not None and due is not None and outcome.fault_s is None and time.monotonic() >= due:
            outcome.fault_s = time.monotonic()
            deed(happening)
        time.sleep(LOOK_S)
    if cpu is not None:
        outcome.cpu_s = sum(happening.bed.cpu_seconds(d) for d in happening.bed.devices) - cpu
    if records.exists():
        _take(read_from(records, offset)[0], outcome)


def _take(found: Sequence[Record], outcome: Outcome) -> None:
    for record in found:
        if isinstance(record, RoundRecord):
            outcome.rounds.append(record)
            outcome.committed_s.append(time.monotonic())
        elif isinstance(record, IncidentRecord):
            outcome.incidents.append(record)
        elif isinstance(record, PlanAdopted):
            outcome.plans.append(record.plan)


def _judge(coordinator: subprocess.Popen[bytes], run_dir: Path, outcome: Outcome) -> None:
    assert coordinator.stdout is not None
    lines = coordinator.stdout.read().decode().splitlines()
    if coordinator.returncode or not lines:
        outcome.problem = f"the coordinator ended with code {coordinator.returncode}; {_last(run_dir.parent)}"
        return
    said = json.loads(lines[-1])
    outcome.lost, outcome.doubled = said["lost"], said["doubled"]
    outcome.finished = audit(run_dir).finished
    checkpoint = newest(run_dir)
    if checkpoint is not None:
        _, weights, optimizer = load(checkpoint.path)
        outcome.state = {**weights, **{f"optimizer {k}": t for k, t in optimizer.items()}}


def _last(folder: Path) -> str:
    lines = (folder / "coordinator.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no word"

"""One run on a testbed, with something happening to its devices on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.testbed import Testbed, coordinator_address, join_all
from benchmarks.testbed.agents import environment
from benchmarks.throughput.others import unhurried
from potluck.control.audit import audit
from potluck.metrics.records import RECORDS, CopyRecord, IncidentRecord, PlanAdopted, Record, read_from
from potluck.tensors.checkpoint import load, newest
from potluck.types import COORDINATOR, Plan, RoundRecord

RUN_S = 400.0
LOOK_S = 0.02
_SOME_ROUNDS = 3  # that tell what one takes, where fewer were trained again
Deed = Callable[["Happening"], None]


@dataclass(frozen=True)
class Setup:
    """What is trained, by what plan, for how long."""

    model: str
    plan: Plan
    rounds: int
    profile: Path  # where it is, or is kept once it was measured
    how: str = "ours"
    first_copy_s: float = 0.0  # training before states are first copied
    save_every: int = 10**9
    resume: bool = False
    anew: bool = False
    without: tuple[str, ...] = ()  # devices that never join

    def command(self, bed: Testbed, folder: Path, devices: int) -> list[str]:
        """What starts its coordinator."""
        plan_file = folder / "plan.json"
        plan_file.write_bytes(msgspec.json.encode(self.plan))
        words: dict[str, object] = {
            "listen": coordinator_address(bed), "devices": devices, "model": self.model, "plan": plan_file,
            "profile": self.profile, "run-dir": folder / "run", "rounds": self.rounds, "save-every": self.save_every,
            "how": self.how, "first-copy-s": self.first_copy_s,
        }  # fmt: skip
        flags = ["--resume"] * self.resume + ["--anew"] * self.anew
        pairs = [word for name, value in words.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-W", "ignore", "-m", "benchmarks.recovery.coordinator", *pairs, *flags]


@dataclass
class Happening:
    """What a scenario may lay hands on."""

    bed: Testbed
    setup: Setup
    folder: Path
    coordinator: subprocess.Popen[bytes]
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def leave(self, device: str) -> None:
        """Asks a device to leave, as Ctrl-C does."""
        for process in self.bed.processes(device):
            cmdline = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"potluck" in cmdline and b"join" in cmdline:
                os.kill(process, signal.SIGINT)

    def join(self, device: str) -> None:
        """Starts `potluck join` on a device."""
        self.agents |= join_all(self.bed, logs=self.folder, devices=[device])

    def restart(self) -> None:
        """The coordinator vanishes, and is started again."""
        self.bed.kill(COORDINATOR)
        self.coordinator.wait(30.0)
        self.go_on()

    def go_on(self) -> None:
        """Starts a coordinator for the run that was interrupted."""
        setup = replace(self.setup, resume=True, how="ours")
        self.coordinator = start(self.bed, setup, self.folder, len(self.bed.devices))


@dataclass
class Outcome:
    """What became of a run."""

    lost: int = 0
    doubled: int = 0
    finished: bool = False
    problem: str = ""
    fault_s: float | None = None  # when it happened, on the machine's monotonic clock
    began_s: float = 0.0
    warm_s: float = 0.0  # of a cold restart: until all processes were there again
    incidents: list[IncidentRecord] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    committed_s: list[float] = field(default_factory=list)  # when each of these was seen
    plans: list[Plan] = field(default_factory=list)
    copies: list[CopyRecord] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # of all devices, when each round was seen
    state: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def unsplit(self) -> bool:
        """Whether no stage was ever shared: then nothing was added up in another order."""
        return all(len(stage.group) == 1 for plan in self.plans for stage in plan.stages)

    @property
    def losses(self) -> list[IncidentRecord]:
        """Devices that were declared lost."""
        return [i for i in self.incidents if i.kind == "lost"]

    def back_after_s(self) -> float | None:
        """From the fault until as many rounds were committed as before it, and one more."""
        if self.fault_s is None:
            return None
        fault_s = self.fault_s
        times = list(zip(self.rounds, self.committed_s, strict=True))
        reached = max((r.round for r, at in times if at <= fault_s), default=-1)
        return next((at - fault_s for r, at in times if at > fault_s and r.round > reached), None)

    def recover_rounds(self) -> float | None:
        """From the declaration of the loss to the first commit of a round that was never committed before, in rounds as
        those who are left trained them meanwhile, by one plan or by two, less those that were trained again."""
        if not self.losses:
            return None
        declared_s = self.began_s + self.losses[0].at_s
        times = list(zip(self.rounds, self.committed_s, strict=True))
        newest = max((r.round for r, at in times if at <= declared_s), default=-1)
        after = [(r, at) for r, at in times if at > declared_s]
        again = next((place for place, (r, _) in enumerate(after) if r.round > newest), None)
        if again is None or len(after) < 3:
            return None
        usual = statistics.fmean(r.seconds for r, _ in after[: max(again + 1, _SOME_ROUNDS)])
        return (after[again][1] - declared_s) / usual - again


def start(bed: Testbed, setup: Setup, folder: Path, devices: int) -> subprocess.Popen[bytes]:
    """Starts a coordinator."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "coordinator.log").open("ab") as log:
        command = setup.command(bed, folder, devices)
        return bed.start(COORDINATOR, command, env=environment(), stdout=subprocess.PIPE, stderr=log)


def run(bed: Testbed, setup: Setup, folder: Path, deed: Deed | None, after: int, seed: int) -> Outcome:
    """Trains, and lets something happen at a random moment after so many rounds."""
    devices = [device for device in bed.devices if device not in setup.without]
    happening = Happening(bed, setup, folder, start(bed, setup, folder, len(devices)))
    outcome = Outcome()
    try:
        with unhurried(bed):
            happening.agents = join_all(bed, logs=folder, devices=devices)
            _line(happening.coordinator)
        outcome.began_s = float(_line(happening.coordinator)["ready_s"])
        chance = random.Random(seed)  # noqa: S311 - a moment, not a secret
        _watch(outcome, happening, deed, after, chance)
        happening.coordinator.wait(30.0)
    except (TimeoutError, subprocess.TimeoutExpired, RuntimeError) as error:
        outcome.problem = f"{error}; {_last(folder)}"
    finally:
        end_all(bed, happening.coordinator)
    if not outcome.problem:
        _judge(happening.coordinator, folder / "run", outcome)
    return outcome


def end_all(bed: Testbed, coordinator: subprocess.Popen[bytes]) -> None:
    """Ends every process of a run, and mends every line."""
    bed.restore()
    for device in (COORDINATOR, *bed.devices):
        if device != COORDINATOR:
            bed.thaw(device)
        bed.kill(device)
    coordinator.wait(30.0)


def _line(coordinator: subprocess.Popen[bytes]) -> dict[str, Any]:
    line = b"" if coordinator.stdout is None else coordinator.stdout.readline()
    if not line:
        raise RuntimeError("the coordinator ended before it was ready")
    found: dict[str, Any] = json.loads(line)
    return found


def _watch(outcome: Outcome, happening: Happening, deed: Deed | None, after: int, chance: random.Random) -> None:
    records, offset = happening.folder / "run" / RECORDS, 0
    deadline = time.monotonic() + RUN_S
    due: float | None = None
    bed = happening.bed
    dies = happening.setup.how == "dies"  # by itself: the deed is to start it again
    while happening.coordinator.poll() is None or (dies and outcome.fault_s is None):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it took more than {RUN_S:.0f} s")
        if records.exists():
            found, offset = read_from(records, offset)
            take(found, outcome)
            spent_s = sum(bed.cpu_seconds(d) for d in bed.devices)
            outcome.cpu_s += [spent_s] * (len(outcome.rounds) - len(outcome.cpu_s))
        done = len({r.round for r in outcome.rounds})
        if deed is not None and done >= after and due is None:
            usual = max(r.seconds for r in outcome.rounds[-2:])
            due = time.monotonic() + chance.random() * usual
        ripe = happening.coordinator.poll() is not None if dies else due is not None and time.monotonic() >= due
        if deed is not None and ripe and outcome.fault_s is None:
            outcome.fault_s = time.monotonic()
            deed(happening)
        time.sleep(LOOK_S)
    if records.exists():
        take(read_from(records, offset)[0], outcome)


def take(found: Sequence[Record], outcome: Outcome) -> None:
    """Takes new records into account."""
    for record in found:
        if isinstance(record, RoundRecord):
            outcome.rounds.append(record)
            outcome.committed_s.append(time.monotonic())
        elif isinstance(record, IncidentRecord):
            outcome.incidents.append(record)
        elif isinstance(record, PlanAdopted):
            outcome.plans.append(record.plan)
        elif isinstance(record, CopyRecord):
            outcome.copies.append(record)


def _judge(coordinator: subprocess.Popen[bytes], run_dir: Path, outcome: Outcome) -> None:
    lines = [] if coordinator.stdout is None else coordinator.stdout.read().decode().splitlines()
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

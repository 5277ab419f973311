"""The coordinator vanishes: devices hold what they have, and it goes on with them when it is back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from potluck.cli.verbs.join import default_name
from potluck.control.audit import audit
from potluck.metrics.records import RECORDS, IncidentRecord, read
from potluck.tensors.checkpoint import load, newest
from tests.process.agents import ROOT, ended, free_port, until

PATIENT_S = 90.0
HOST = default_name(socket.gethostname())
JOB = """
import torch
from potluck import AdamW, Job

torch.manual_seed(3)
model = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(32, 32), torch.nn.ReLU())])
data = (torch.randn(256, 32), torch.randn(256, 32))
job = Job(
    model=model, loss=torch.nn.functional.mse_loss, optimizer=AdamW(lr=1e-3), data=data, batch_size=16,
    micro_batch_size=4, rounds=ROUNDS, seed=5, checkpoint_every=SAVE,
)
"""


class Site:
    """A folder, a port, and the processes of one run."""

    def __init__(self, folder: Path, rounds: int, save: int) -> None:
        self.folder, self.run, self.port = folder, folder / "run", free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "job.py").write_text(JOB.replace("ROUNDS", str(rounds)).replace("SAVE", str(save)))
        plan = {
            "micro_batch_size": 4, "micro_batches": 4,
            "stages": [
                {"blocks": [0, 2], "group": [{"device": "a", "share": 4}]},
                {"blocks": [2, 4], "group": [{"device": "b", "share": 4}]},
            ],
        }  # fmt: skip
        (folder / "plan.json").write_text(json.dumps(plan))

    def start(self, *arguments: str, module: tuple[str, ...] = ("potluck",)) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", *module, *arguments]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def train(self, *more: str, run: str = "run", module: tuple[str, ...] = ("potluck",)) -> subprocess.Popen[bytes]:
        where = ["--listen", f"127.0.0.1:{self.port}", "--devices", "2", "--no-local"]
        run_dir = ["--run-dir", str(self.folder / run)]
        return self.start("train", "job.py", *where, *run_dir, "--plan", "plan.json", *more, module=module)

    def join(self, name: str | None, hold: str = "60s") -> subprocess.Popen[bytes]:
        """Without a name, it is called after this host."""
        named = [] if name is None else ["--name", name]
        return self.start("join", f"127.0.0.1:{self.port}", *named, "--threads", "1", "--hold", hold)

    @property
    def committed(self) -> int:
        ledger = self.run / "ledger.jsonl"
        return ledger.read_bytes().count(b"\n") if ledger.exists() else 0

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@contextlib.contextmanager
def site(folder: Path, rounds: int, save: int = 1000) -> Iterator[Site]:
    folder.mkdir(parents=True, exist_ok=True)
    it = Site(folder, rounds, save)
    with ended(it):
        yield it


def state(run: Path) -> dict[str, torch.Tensor]:
    found = newest(run)
    assert found is not None
    _, weights, optimizer = load(found.path)
    return {**weights, **optimizer}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    with site(tmp_path_factory.mktemp("undisturbed"), 400) as it:
        train, *_ = it.train(), it.join("a"), it.join("b")
        assert train.wait(PATIENT_S) == 0
        return state(it.run)


def test_a_coordinator_that_was_killed_goes_on_with_the_same_devices(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with site(tmp_path, 400) as it:
        dying = it.train(module=("tests.process.dying_coordinator", "20"))
        devices = [it.join("a"), it.join("b")]
        assert dying.wait(PATIENT_S) == -signal.SIGKILL
        assert it.committed == 21  # the last of which nobody has heard of
        assert it.train("--resume").wait(PATIENT_S) == 0
        assert [device.wait(PATIENT_S) for device in devices] == [0, 0]  # the same processes, to the end
        found = state(it.run)
        assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
        assert audit(it.run).finished
        [back] = [r for r in read(it.run / RECORDS) if isinstance(r, IncidentRecord)]
        assert (back.kind, back.round, back.replayed_rounds) == ("coordinator", 21, 1)


def test_two_devices_of_one_host_name_are_told_apart_and_keep_their_names(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with site(tmp_path, 400) as it:
        plan = tmp_path / "plan.json"
        plan.write_text(plan.read_text().replace('"a"', f'"{HOST}"').replace('"b"', f'"{HOST}-2"'))
        dying = it.train(module=("tests.process.dying_coordinator", "20"))
        devices = [it.join(None), it.join(None)]
        assert dying.wait(PATIENT_S) == -signal.SIGKILL
        assert it.train("--resume").wait(PATIENT_S) == 0
        assert [device.wait(PATIENT_S) for device in devices] == [0, 0]
        assert f"the name {HOST} is taken, and another device of that name joins: it is called {HOST}-2\n" in it.log
        assert f"the name {HOST} is taken: this device is called {HOST}-2; --name chooses another\n" in it.log
        found = state(it.run)
        assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []


def test_a_device_whose_owner_chose_a_name_that_is_taken_is_told_so_in_a_line(tmp_path: Path) -> None:
    with site(tmp_path, 400) as it:
        it.train("--devices", "3")
        it.join(None)
        until(lambda: f"{HOST} joined" in it.log, "joining", PATIENT_S)
        assert it.join(HOST).wait(PATIENT_S) == 2
        assert f"\npotluck: the name {HOST} is taken; join with another --name, or without one\n" in it.log


@pytest.mark.full
def test_one_device_that_does_not_come_back_is_done_without(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with site(tmp_path, 400) as it:
        train, a, b = it.train(), it.join("a"), it.join("b")
        until(lambda: it.committed >= 20, "training", PATIENT_S)
        for process in (train, b):
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENT_S)
        assert it.train("--resume").wait(PATIENT_S) == 0
        assert a.wait(PATIENT_S) == 0
        found = state(it.run)
        assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
        assert audit(it.run).finished


@pytest.mark.full
def test_devices_whose_coordinator_stays_away_end(tmp_path: Path) -> None:
    with site(tmp_path, 100_000) as it:
        train, *devices = it.train(), it.join("a", hold="2s"), it.join("b", hold="2s")
        until(lambda: it.committed >= 5, "training", PATIENT_S)
        train.send_signal(signal.SIGKILL)
        assert [device.wait(PATIENT_S) for device in devices] == [1, 1]
        assert "the coordinator did not come back" in it.log


@pytest.mark.full
def test_devices_that_hold_one_run_can_train_another(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with site(tmp_path, 400) as it:
        train, *devices = it.train(), it.join("a"), it.join("b")
        until(lambda: it.committed >= 20, "training", PATIENT_S)
        train.send_signal(signal.SIGKILL)
        train.wait(PATIENT_S)
        assert it.train(run="another").wait(PATIENT_S) == 0
        assert [device.wait(PATIENT_S) for device in devices] == [0, 0]
        found = state(tmp_path / "another")
        assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []


@pytest.mark.full
def test_a_wrong_resume_costs_nothing_that_is_held(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with site(tmp_path, 400) as it:
        train, *devices = it.train(), it.join("a"), it.join("b")
        until(lambda: it.committed >= 20, "training", PATIENT_S)
        train.send_signal(signal.SIGKILL)
        train.wait(PATIENT_S)
        right = (tmp_path / "job.py").read_text()
        (tmp_path / "job.py").write_text(right.replace("seed=5", "seed=6"))
        assert it.train("--resume").wait(PATIENT_S) == 2
        assert "made with seed 5, the job now has 6" in it.log
        (tmp_path / "job.py").write_text(right)
        assert it.train("--resume").wait(PATIENT_S) == 0
        assert [device.wait(PATIENT_S) for device in devices] == [0, 0]
        found = state(it.run)
        assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []


@pytest.mark.full
def test_a_device_that_holds_and_is_asked_to_leave_does_not_end_in_order(tmp_path: Path) -> None:
    with site(tmp_path, 100_000) as it:
        train, a, _ = it.train(), it.join("a"), it.join("b")
        until(lambda: it.committed >= 5, "training", PATIENT_S)
        train.send_signal(signal.SIGKILL)
        until(lambda: it.log.count("looking for") == 2, "holding", PATIENT_S)
        a.send_signal(signal.SIGINT)
        assert a.wait(PATIENT_S) == 1


@pytest.mark.full
def test_a_device_that_nobody_can_spare_leaves_and_the_run_is_saved(tmp_path: Path) -> None:
    with site(tmp_path, 100_000) as it:
        plan = json.loads((tmp_path / "plan.json").read_text())
        plan["stages"] = [{"blocks": [0, 4], "group": [{"device": "a", "share": 4}]}]
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        train, a, b = it.train(), it.join("a"), it.join("b")
        until(lambda: it.committed >= 5, "training", PATIENT_S)
        b.send_signal(signal.SIGINT)  # it is not in the plan
        assert b.wait(PATIENT_S) == 0
        a.send_signal(signal.SIGINT)
        assert (a.wait(PATIENT_S), train.wait(PATIENT_S)) == (0, 0)
        assert "stopped after" in it.log
        assert "saved and stopped" in it.log  # the device knows too
        assert newest(it.run) is not None


@pytest.mark.full
def test_after_a_power_cut_it_goes_on_from_the_last_checkpoint(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with site(tmp_path, 400, save=10) as it:
        everybody = [it.train(), it.join("a"), it.join("b")]
        until(lambda: it.committed >= 25, "training", PATIENT_S)
        for process in everybody:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENT_S)
        train, *_ = it.train("--resume"), it.join("a"), it.join("b")
        assert train.wait(PATIENT_S) == 0
        found = state(it.run)
        assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
        assert audit(it.run).finished

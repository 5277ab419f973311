"""`potluck plan` with real devices: measured, planned, and the plan trained with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import potluck, torch
from torch import nn
generator = torch.Generator().manual_seed(0)
x = torch.randn(64, 16, generator=generator)
def make_model():
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 2))
job = potluck.Job(
    model=make_model, loss=nn.functional.cross_entropy, optimizer=potluck.SGD(lr=0.1), batch_size=16, rounds=2,
    data=(x, (x.sum(1) > 0).long()),
)
"""


def potluck(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "potluck", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.timeout(200)
def test_measured_devices_get_a_plan_that_trains(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    local = ("--local", "1,0.5", "--timeout", "60s")
    measuring = ("--profile-seconds", "1s", "--profile-dir", "profiles", "--plan-seconds", "0.5s")
    planned = potluck(
        tmp_path, "plan", "job.py", *local, *measuring, "--planner", "gpipe", "--out", "plan.json", "--json"
    )
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout.splitlines()[-1])
    assert {d["device"] for d in found["devices"]} == {"local1", "local2"}
    trained = potluck(tmp_path, "train", "job.py", *local, "--plan", "plan.json", "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout.splitlines()[-1])["rounds"] == 2

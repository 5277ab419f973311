"""A planner that somebody else has written is asked by its name, and its plan trains with the bits of one device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.plan.validate import read_plan
from potluck.settings.extensions import VARIABLE
from tests.process.command_line import Potluck

FILE = Path(__file__).with_name("longest_first.py")
JOB = """
import potluck, torch
from torch import nn
def make_model():
    torch.manual_seed(1)
    return nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 2))
x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
job = potluck.Job(
    model=make_model, loss=nn.functional.cross_entropy, optimizer=potluck.SGD(lr=0.1), batch_size=32,
    micro_batch_size=8, rounds=3, data=(x, (x.sum(1) > 0).long()),
)
"""
LOCAL = ("--local", "small=0.25,big=1", "--timeout", "60s")


@pytest.fixture
def potluck(tmp_path: Path) -> Iterator[Potluck]:
    with Potluck(tmp_path) as it:
        it.environment[VARIABLE] = str(FILE)
        (tmp_path / "job.py").write_text(JOB)
        yield it


@pytest.mark.timeout(240)
@pytest.mark.full
def test_its_plan_trains_and_has_the_bits_of_one_device(potluck: Potluck, tmp_path: Path) -> None:
    measuring = ("--profile-seconds", "1s", "--profile-dir", "profiles")
    asked = ("--planner", "longest-first", "--out", "plan.json", "--json")
    code, out, err = potluck.run("plan", "job.py", *LOCAL, *measuring, *asked)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["planner"] == "longest-first"
    stages = read_plan(tmp_path / "plan.json").stages
    assert [stage.group[0].device for stage in stages] == ["big", "small"]
    first, second = (stop - start for start, stop in (stage.blocks for stage in stages))
    assert first > second >= 1
    code, out, err = potluck.run("verify", "job.py", *LOCAL, "--plan", "plan.json", "--rounds", "3", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["rung"] == 1
    code, out, err = potluck.run("train", "job.py", *LOCAL, "--plan", "plan.json", "--run-dir", "run", "--json")
    assert code == 0, err
    code, out, err = potluck.run("verify", "--run", "run")
    assert code == 0, out + err


def test_without_it_the_planners_that_there_are_are_named(potluck: Potluck) -> None:
    del potluck.environment[VARIABLE]
    code, _, err = potluck.run("plan", "job.py", *LOCAL, "--planner", "longest-first")
    assert code == 2
    assert "--planner: 'longest-first' is not known; give one of potluck, single" in err

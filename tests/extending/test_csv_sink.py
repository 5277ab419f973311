"""A metrics sink that somebody else has written gets every round of a real run; one that fails ends no run."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.control.audit import audit
from potluck.coordinator.run_folder.ledger_file import LEDGER, Ledger
from potluck.settings.extensions import VARIABLE
from tests.process.command_line import Potluck

FILE = Path(__file__).with_name("csv_sink.py")
ROUNDS = 6
FAILS = """
from potluck.metrics.sinks import register_sink

class Failing:
    def __init__(self, run_dir): ...
    def record(self, record): 1 / 0
    def close(self): ...

register_sink(Failing)
"""
MEASURING = ("--profile-seconds", "1s", "--profile-dir", "profiles", "--plan-seconds", "0.5s", "--timeout", "60s")


@pytest.fixture
def potluck(tmp_path: Path) -> Iterator[Potluck]:
    with Potluck(tmp_path) as it:
        (tmp_path / "fails.py").write_text(FAILS)
        it.environment[VARIABLE] = f"fails.py,{FILE}"
        yield it


def test_it_gets_every_round_as_the_ledger_has_it_beside_one_that_fails(potluck: Potluck, tmp_path: Path) -> None:
    code, _, err = potluck.run("train", potluck.job(ROUNDS), "--local", "1,0.5", *MEASURING, "--run-dir", "run")
    assert code == 0, err
    assert audit(tmp_path / "run").finished
    ledger = Ledger(tmp_path / "run" / LEDGER)
    with (tmp_path / "run" / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == list(range(ROUNDS))
    assert [float(row["loss"]) for row in rows] == [float.fromhex(entry.loss) for entry in ledger.entries()]
    ledger.close()
    said = [line for line in err.splitlines() if "metrics sink" in line]
    assert len(said) == 1
    assert "metrics sink Failing failed (ZeroDivisionError: division by zero); training goes on without it" in said[0]

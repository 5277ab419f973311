"""The benchmark of late gradients trains both ways, and its kept figures are of the optimizers that it names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import potluck
from benchmarks import delay
from potluck.commands.demo_job import job as demo_job

RESULTS = Path(delay.__file__).parent / "results" / "delay.json"
SHORT = dataclasses.replace(demo_job, epochs=None, rounds=3, batch_size=20, micro_batch_size=20)


def test_it_trains_in_lock_step_and_one_step_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "jobs", lambda: {"digits": SHORT})
    monkeypatch.setattr(delay, "OPTIMIZERS", {"digits": {"a": potluck.NAdam(lr=0.01), "b": potluck.SGD(lr=0.0)}})
    run = CliRunner().invoke(delay.main, ["--quick", "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.output.splitlines()[-1])["delay"]["digits"]
    assert found["a"]["gap"] != 0
    assert found["a"]["lock_step"].keys() == {"loss", "accuracy"}
    assert found["b"]["gap"] == found["b"]["least"] == found["b"]["most"] == 0
    assert run.output.count("| digits |") == 2


def test_the_kept_figures_are_of_these_optimizers_and_several_seeds() -> None:
    kept = json.loads(RESULTS.read_text())
    assert {job: list(rows) for job, rows in kept["delay"].items()} == {j: list(o) for j, o in delay.OPTIMIZERS.items()}
    for job, rows in kept["delay"].items():
        assert all(row["lr"] == delay.OPTIMIZERS[job][name].lr for name, row in rows.items())
    assert len(kept["seeds"]) >= 3


def test_the_text_is_learnt_with_a_schedule_of_its_rounds() -> None:
    text = delay.jobs()["text"]
    assert text.rounds == delay.TEXT_ROUNDS
    assert delay.variant(text, potluck.NAdam(), 4).micro_batch_size == text.batch_size

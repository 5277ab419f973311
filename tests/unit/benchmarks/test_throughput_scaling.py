"""What is left of the scaling benchmark when it fails in the middle, and where it says that it was measured."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.testbed import TestbedError
from benchmarks.throughput import scaling
from benchmarks.throughput.scaling import DEVICES, MICRO_BATCHES, STAGES, Point


class Fake:
    """Points without a testbed; how many of them the file had after each."""

    def __init__(self, folder: Path, failure: Exception | None = None) -> None:
        self._folder, self._failure = folder, failure
        self.kept: list[int] = []

    def __call__(self, count: int, points: Sequence[Point], logs: Path, add: Callable[[int, float], None]) -> None:
        for point in points:
            if self._failure is not None and point.micro_batch is not None and len(self.kept) > len(DEVICES):
                raise self._failure
            add(point.number, 0.5)
            found = json.loads((self._folder / "scaling.json").read_text())
            self.kept.append(len(found["devices"]) + len(found["micro_batches"]))


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scaling, "ended_by_signals", lambda: None)
    monkeypatch.setattr(scaling, "check_here", lambda: None)
    monkeypatch.setattr(scaling, "commit", lambda: "abc1234")
    return tmp_path


def test_every_point_is_kept_at_once_with_where_it_was_measured(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(logs / "results")
    monkeypatch.setattr(scaling, "efficiencies", fake)
    outcome = CliRunner().invoke(scaling.main, ["--results", str(logs / "results"), "--json"])
    assert outcome.exit_code == 0
    assert fake.kept == list(range(1, len(DEVICES) + len(MICRO_BATCHES) + 1))
    found = json.loads((logs / "results" / "scaling.json").read_text())
    assert found == json.loads(outcome.output.splitlines()[-1])
    assert found["commit"] == "abc1234"
    assert found["machine"]["cores"] > 0
    assert list(found["micro_batches"]) == [str(m) for m in MICRO_BATCHES]
    assert (logs / "results" / "scaling.svg").read_text().startswith("<svg")
    assert not list(logs.glob("potluck-scaling-*"))


@pytest.mark.parametrize("failure", [RuntimeError("it ended"), TimeoutError("it ended"), TestbedError("it ended")])
def test_what_was_measured_before_a_failure_is_left_and_so_are_logs(
    logs: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(scaling, "efficiencies", Fake(logs / "results", failure))
    outcome = CliRunner().invoke(scaling.main, ["--results", str(logs / "results")])
    assert outcome.exit_code == 1
    [left] = logs.glob("potluck-scaling-*")
    assert outcome.output.splitlines()[-1] == f"Error: it ended; logs: {left}"
    assert len(outcome.output.splitlines()) == 2
    found = json.loads((logs / "results" / "scaling.json").read_text())
    assert (len(found["devices"]), len(found["micro_batches"])) == (len(DEVICES), 1)


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_measured(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "file").touch()
    fake = Fake(logs)
    monkeypatch.setattr(scaling, "efficiencies", fake)
    outcome = CliRunner().invoke(scaling.main, ["--results", str(logs / "file" / "results")])
    assert (outcome.exit_code, fake.kept) == (2, [])
    assert len(outcome.output.splitlines()) == 1


def test_a_plan_that_there_is_not_is_not_trained(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def nothing(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(
            burst=lambda _: 1.0, brief=8, is_brief=True, plan=lambda *_: [{"error": "too little memory", "plan": ""}]
        )

    monkeypatch.setattr(scaling, "one_core", lambda cell: SimpleNamespace(ideal_size=8))
    for name in ("Testbed", "Ideal", "Ours"):
        monkeypatch.setattr(scaling, name, nothing)
    with pytest.raises(RuntimeError, match="too little memory"):
        scaling.efficiencies(STAGES, [Point(8, 64, 8)], logs, lambda number, part: None)


def test_help_says_how_long_it_takes() -> None:
    words = " ".join(CliRunner().invoke(scaling.main, ["--help"]).output.split())
    assert "some 25 minutes" in words
    assert "Example: sudo .venv/bin/python -m benchmarks.throughput.scaling --json" in words

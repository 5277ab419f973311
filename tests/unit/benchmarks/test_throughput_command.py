"""What the command refuses before it measures anything, and what it says of itself; nothing is measured here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

import benchmarks.throughput.__main__ as command
from benchmarks.testbed import bed
from benchmarks.throughput import machine, scaling
from benchmarks.throughput.cells import Cell
from benchmarks.throughput.kept import Kept, Measured
from benchmarks.throughput.measure import Rate, Result
from benchmarks.throughput.one_core import one_core
from benchmarks.time_limit import QUICK_S, TimeLimit

CELL, OTHER = Cell("lab-1000", "resnet50", 120), Cell("lab-100", "gpt_10m")
NOW = "abc1234"


class Bench:
    """The command with everything that it would measure left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
        self.measured, self.code, self.cores, self.errors = 0, NOW, 2, dict[str, str]()
        self.limit_s: float | None = None
        self.left_out: list[str] = []
        logs.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(logs))
        monkeypatch.setattr(command, "ended_by_signals", lambda: None)
        monkeypatch.setattr(command, "check_here", lambda: None)
        monkeypatch.setattr(bed, "cores_here", lambda: self.cores)
        monkeypatch.setattr(bed, "check_machine", lambda: None)
        monkeypatch.setattr(command, "commit", lambda: self.code)
        monkeypatch.setattr(command, "transport_cost", self._cost)
        monkeypatch.setattr(command, "run", self._run)

    def _cost(self) -> tuple[float, float]:
        self.measured += 1
        return 0.5, 1.0

    def _run(
        self, bench: object, logs: Path, when: str, before: list[Result], again: bool, limit: TimeLimit
    ) -> Iterator[list[Result]]:
        self.limit_s = limit.seconds
        limit.left_out += self.left_out
        yield [*before, Result(Cell("rooms", "gpt_10m"), {"potluck": [Rate(1.0, 2.0)]}, self.errors, when=[when])]

    def __call__(self, *arguments: str) -> Outcome:
        return CliRunner().invoke(command.main, ["--only", "lab-1000/120:resnet50", *arguments])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path / "logs")


def _keep(folder: Path, *whens: str) -> None:
    chosen = Result(CELL, {"potluck": [Rate(80.0, 100.0)]}, when=list(whens))
    other = Result(OTHER, {"potluck": [Rate(80.0, 100.0)]}, when=["2026-01-01 other"])
    Kept(folder, "throughput").write(Measured([chosen, other], 0.5, 1.0, {}, 12.5))


def _one_line(outcome: Outcome) -> str:
    [line] = outcome.output.splitlines()
    return str(line)


def test_a_folder_that_has_cells_is_left_alone_unless_they_are_to_be_kept(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    _keep(folder)
    before = (folder / "throughput-raw.json").read_bytes()
    outcome = bench("--results", str(folder))
    assert (outcome.exit_code, bench.measured) == (2, 0)
    raw = folder / "throughput-raw.json"
    assert _one_line(outcome) == f"Error: {raw} has 2 cells already; add --add to keep them, or name another folder"
    assert raw.read_bytes() == before
    assert bench("--results", str(folder), "--add").exit_code == 0
    assert len(Kept(folder, "throughput").read().cells) == 3


@pytest.mark.parametrize(
    ("whens", "code", "was"),
    [
        ((f"2026-01-01 {NOW}", "2026-01-02 def5678"), NOW, f"{NOW}, def5678"),
        ((), NOW, "unknown code"),
        (("2026-01-01 ",), "", "unknown code"),
        ((f"2026-01-01 {NOW}-dirty",), f"{NOW}-dirty", f"{NOW}-dirty"),
        ((f"2026-01-01 {NOW}",), f"{NOW}-dirty", NOW),
    ],
)
def test_other_code_is_not_measured_again(
    bench: Bench, tmp_path: Path, whens: tuple[str, ...], code: str, was: str
) -> None:
    _keep(tmp_path, *whens)
    bench.code = code
    outcome = bench("--results", str(tmp_path), "--again")
    assert (outcome.exit_code, bench.measured) == (2, 0)
    assert f"--again: lab-1000/120:resnet50 was measured with {was}, and this is " in _one_line(outcome)
    assert "use --add to measure it anew" in outcome.output
    assert bench("--results", str(tmp_path), "--add").exit_code == 0


def test_the_same_code_is_measured_again_whatever_the_other_cells_had(bench: Bench, tmp_path: Path) -> None:
    _keep(tmp_path, f"2026-01-01 {NOW}", f"2026-01-02 {NOW}")
    assert bench("--results", str(tmp_path), "--again").exit_code == 0
    assert bench.measured == 1


def test_a_fleet_that_wants_more_cores_than_there_are_is_found_before_others_are_measured(bench: Bench) -> None:
    bench.cores = 1
    outcome = bench("--only", "tenfold-100:resnet50")
    assert (outcome.exit_code, bench.measured) == (2, 0)
    assert "want 1.32 cores and this machine has 1; lower the speeds" in _one_line(outcome)


@pytest.mark.parametrize("content", [b'{"cells": [3]}', b"{", b'{"machine": {"a": "\xff"}}'])
def test_a_broken_file_is_wrong_input(bench: Bench, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "throughput-raw.json").write_bytes(content)
    outcome = bench("--results", str(tmp_path), "--add")
    assert (outcome.exit_code, bench.measured) == (2, 0)
    assert "move it away to begin anew" in _one_line(outcome)


@pytest.mark.parametrize("name", ["throughput-raw.json", "throughput.json", "throughput.svg"])
def test_a_folder_in_the_place_of_a_file_is_found_before_anything_is_measured(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    outcome = bench("--results", str(tmp_path))
    assert (outcome.exit_code, bench.measured) == (2, 0)
    assert _one_line(outcome).endswith(f"Is a directory: {tmp_path / name}")


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_measured(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = bench("--results", str(tmp_path / "file" / "results"))
    assert (outcome.exit_code, bench.measured) == (2, 0)
    assert _one_line(outcome).startswith(f"Error: results cannot be kept in {tmp_path}/file/results: Not a directory")


def test_a_folder_that_cannot_be_written_is_found_before_anything_is_measured(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: Any) -> None:  # root may write anywhere but on a disk that is read only
        raise OSError(30, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    outcome = bench("--results", str(tmp_path))
    assert (outcome.exit_code, bench.measured) == (2, 0)
    assert "Read-only file system" in _one_line(outcome)


@pytest.mark.parametrize("errors", [{}, {"ddp": "out of time"}])
def test_logs_are_left_where_something_failed(bench: Bench, tmp_path: Path, errors: dict[str, str]) -> None:
    bench.errors = errors
    outcome = bench()
    assert outcome.exit_code == 0
    assert f"logs: {tmp_path}/logs/potluck-throughput-" in outcome.output
    assert "(removed if nothing fails)" in outcome.output
    assert len(list((tmp_path / "logs").iterdir())) == len(errors)


def test_an_interruption_leaves_no_empty_folder(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> Iterator[list[Result]]:
        raise KeyboardInterrupt
        yield []

    monkeypatch.setattr(command, "run", interrupted)
    assert bench().exit_code == 1
    assert not list((tmp_path / "logs").iterdir())


def test_a_quick_run_has_a_time_limit_and_names_what_it_left_out(bench: Bench, tmp_path: Path) -> None:
    bench.left_out = ["lab-100:resnet50"]
    outcome = bench("--quick", "--json", "--results", str(tmp_path))
    assert (outcome.exit_code, bench.limit_s) == (0, QUICK_S)
    assert "| lab-100 | resnet50 | left out | | |" in outcome.output
    assert "left out, as 15 minutes are not enough: lab-100:resnet50" in outcome.output
    said = json.loads(outcome.output.splitlines()[-1])
    assert (said["time_limit_s"], said["left_out"]) == (QUICK_S, ["lab-100:resnet50"])
    assert Kept(tmp_path, "throughput-quick").read().left_out == ["lab-100:resnet50"]


def test_a_full_run_takes_as_long_as_it_takes(bench: Bench) -> None:
    outcome = bench("--json")
    assert (outcome.exit_code, bench.limit_s) == (0, None)
    assert json.loads(outcome.output.splitlines()[-1])["left_out"] == []
    assert "left out," not in outcome.output


@pytest.mark.parametrize("program", [command, scaling])
def test_whoever_lacks_transformers_is_told_how_to_get_it(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "ended_by_signals", lambda: None)
    monkeypatch.setattr(machine, "check_machine", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(program, "commit", lambda: pytest.fail("it would measure now"))
    outcome = CliRunner().invoke(program.main)
    assert outcome.exit_code == 1
    assert _one_line(outcome) == (
        "Error: the models of the benchmark need transformers: run make setup, "
        "or pip install -c constraints.txt '.[hf]'"
    )


@pytest.mark.parametrize("one", [machine.transport_cost, lambda: one_core(CELL)])
@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (subprocess.CalledProcessError(1, "x", "", "Traceback:\n  line 3\nValueError: no\n"), "failed: ValueError: no"),
        (subprocess.CalledProcessError(-9, "x", "", ""), "failed: no word"),
        (subprocess.TimeoutExpired("x", 1), "took longer than"),
    ],
)
def test_a_small_program_that_fails_has_one_last_word(
    one: Any, failure: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(click.ClickException, match=rf"^benchmarks\.peers\.\w+ {said}") as found:
        one()
    assert found.value.exit_code == 1


@pytest.mark.parametrize(
    "said",
    [
        "Without --quick or --only it takes days.",
        "Example: sudo .venv/bin/python -m benchmarks.throughput --quick --json",
        "Two fleets, two models, DDP and Asteroid, once each: at most 15 minutes.",
        "ddp, pipelining-*: PyTorch's own programs; the others: their plans on our runtime.",
        "Fleets: lab-100, lab-1000, ",
        "Models: mobilenet_v2, resnet50, ",
    ],
)
def test_help_says_how_long_it_takes_and_what_there_is(said: str) -> None:
    words = " ".join(CliRunner().invoke(command.main, ["--help"], terminal_width=400).output.split())
    assert said in words


def test_results_are_no_code_and_everything_else_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "throughput"
    results = tmp_path / "benchmarks" / "results"
    for path in (folder, results):
        path.mkdir(parents=True)
        (path / "file").write_text("old")
    monkeypatch.setattr(machine, "__file__", str(folder / "machine.py"))
    assert machine.commit() == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, timeout=10)
    clean = machine.commit()
    assert clean
    assert not clean.endswith("-dirty")
    (results / "file").write_text("new")
    assert machine.commit() == clean
    (folder / "file").write_text("new")
    assert machine.commit() == f"{clean}-dirty"

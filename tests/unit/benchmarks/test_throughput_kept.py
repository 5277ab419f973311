"""Measurements in a file are those that were made, and more are added to them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from benchmarks.throughput.cells import Cell
from benchmarks.throughput.kept import Kept, Measured, summary
from benchmarks.throughput.measure import Rate, Result


def _measured() -> Measured:
    result = Result(Cell("lab-1000", "resnet50", 120), oom_kills=1)
    result.add("potluck", Rate(80.0, 100.0), None)
    result.add("ddp", None, "out of time")
    result.plans["potluck"] = {"predicted_s": 1.5, "plan": "2x60", "given": {"stages": [{"blocks": [0, 3]}]}}
    return Measured([result], 0.5, 1.0, {"cores": 2}, 12.5)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "new", "throughput")
    assert kept.read() == Measured()
    kept.write(_measured())
    found = kept.read()
    assert found == _measured()
    found.cells[0].add("potluck", Rate(90.0, 100.0), None)  # more of it
    assert summary(found)["efficiency"] == {"lab-1000/120": {"resnet50": pytest.approx(0.85)}}
    assert (tmp_path / "new" / "throughput.svg").read_text().startswith("<svg")


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "throughput-raw.json").write_text('{"cells": [3]}')
    with pytest.raises(click.ClickException, match=r"throughput-raw\.json: Expected .* move it away") as found:
        Kept(tmp_path, "throughput").read()
    assert found.value.exit_code == 2


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "throughput-raw.json").mkdir()
    with pytest.raises(click.ClickException, match=r"cannot be read: Is a directory: .*throughput-raw\.json") as found:
        Kept(tmp_path, "throughput").read()
    assert found.value.exit_code == 2

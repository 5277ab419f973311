"""The benchmark of kernels runs a whole model with both kinds, and says which processor it was."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks import kernels
from benchmarks.throughput.machine import processor


@pytest.mark.full
def test_it_compares_both_kinds(monkeypatch):
    monkeypatch.setattr(kernels, "TURNS", 2)
    monkeypatch.setattr(kernels, "TURN_S", 0.0)
    monkeypatch.setitem(kernels.ROWS, "gpt_10m", 2)
    run = CliRunner().invoke(kernels.main, ["--model", "gpt_10m", "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.output.splitlines()[-1])["kernels"]["gpt_10m"]
    assert 0.1 < found["quick"] / found["torch"] < 10
    assert found["least"] <= found["ratio"] <= found["most"]


def test_the_processor_is_named(tmp_path):
    told = tmp_path / "cpuinfo"
    told.write_text("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n" * 2)
    assert processor(told) == "AuthenticAMD AMD EPYC, family 26, model 2"
    assert processor(tmp_path / "none") == ""

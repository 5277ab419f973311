"""Time that the host of a virtual machine gave to others."""

from __future__ import annotations

from pathlib import Path

from benchmarks.sync.stolen import Stolen


def test_stolen_time_is_a_part_of_all_time_since_then(tmp_path: Path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 800 0 0 0 50 0 0\ncpu0 1 2 3\n")
    stolen = Stolen(stat)
    assert stolen.part() == 0.0
    stat.write_text("cpu  140 0 60 830 0 0 0 70 0 0\ncpu0 1 2 3\n")
    assert stolen.part() == 0.2
    assert Stolen(tmp_path / "none").part() == 0.0

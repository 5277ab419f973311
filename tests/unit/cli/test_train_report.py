"""What train says about rounds: planned against measured, and what the machine has to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.cli.verbs.train import pace, prediction, round_lines
from potluck.commands import here
from potluck.commands.here import crowding
from potluck.coordinator.training import TrainResult
from potluck.types import DeviceSpec, Fleet


@pytest.mark.parametrize(
    ("planned_s", "measured_s", "line"),
    [
        (0.353, 0.43, "430.0 ms measured, 353.0 ms planned: it took 22% longer"),
        (0.0012, 0.001, "1.0 ms measured, 1.2 ms planned: it took 17% less"),
        (0.0002, 0.001, "1.0 ms measured, 200 µs planned: it took 400% longer"),
        (2.001, 2.0, "2.00 s measured, 2.00 s planned"),
    ],
)
def test_the_direction_is_in_words_and_digits_suit_the_size(planned_s: float, measured_s: float, line: str) -> None:
    assert prediction(planned_s, measured_s) == line


def test_devices_that_take_all_cores_are_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "cores", lambda: 2)
    devices = tuple(DeviceSpec(name=f"d{i}", speed=s) for i, s in enumerate((1.0, 0.6, 0.4)))
    words = crowding(Fleet(devices=devices))
    assert words is not None
    assert "3 emulated devices" in words
    assert "this machine has 2" in words
    assert crowding(Fleet(devices=devices[:2])) is None
    assert crowding(Fleet(devices=(DeviceSpec(name="own", threads=2),))) is None
    assert crowding(None) is None


def result(folder: Path, planned_s: float | None) -> TrainResult:
    return TrainResult(folder, folder / "m", 500, "finished", None, {}, 9871.0, 0, 0, 0.012, planned_s)


def test_measuring_and_training_are_told_apart(tmp_path: Path) -> None:
    record = '{"type":"run_ended","round":500,"reason":"finished","message":"","seconds":6.0,"at_s":6.0}\n'
    (tmp_path / "records.jsonl").write_text(record)
    found = result(tmp_path, 0.01)
    assert pace(found, 36.2) == "6 s of training, 9,871 samples/s; 30 s of starting, measuring and planning before"
    assert pace(found, 6.3) == "6 s of training, 9,871 samples/s"
    assert len(round_lines(found, None)) == 1
    assert len(round_lines(found, "crowded")) == 2
    assert round_lines(result(tmp_path, None), "crowded") == []

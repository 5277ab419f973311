"""What is left of a cell when our own runtime fails in the middle of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.throughput import measure
from benchmarks.throughput.cells import OURS, QUICK, Cell
from benchmarks.throughput.measure import NOT_REACHED, Rate, Result
from benchmarks.throughput.report import figures

CELLS = [Cell("lab-1000", "gpt_10m"), Cell("lab-100", "gpt_10m")]


class _Failing:
    """Trains by one plan, and ends at the next."""

    def __init__(self, bed: object, logs: Path) -> None: ...

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None: ...

    def plan(self, *_: object) -> list[dict[str, Any]]:
        return [
            {"planner": planner, "plan": "", "predicted_s": None, "same_as": None, "error": None}
            for planner in (OURS, "eddl", "asteroid")
        ]

    def train(self, planner: str, timeout_s: float) -> dict[str, Any]:
        if planner != OURS:
            raise RuntimeError("our coordinator ended")
        return {"round_s": 2.0, "spent_s": {}}


class _Yardstick:
    def look(self) -> None: ...

    def beside(self, take: Any) -> Rate:
        return Rate(take(), 240.0)


def test_what_was_measured_before_ours_failed_counts_and_who_failed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "Ours", _Failing)
    monkeypatch.setattr(measure, "_set_lines", lambda bed, cell: None)
    results = {cell: Result(cell, {"ddp": [Rate(50.0, 100.0)]}) for cell in CELLS}
    bed: Any = None
    yardstick: Any = _Yardstick()
    measure._measure_ours(QUICK, bed, CELLS, results, tmp_path, yardstick)
    assert {system: result.part(system) for result in results.values() for system in result.rates} == {
        "ddp": 0.5, OURS: 0.5
    }  # fmt: skip
    first, second = (result.errors for result in results.values())
    assert first == {"eddl": "our coordinator ended", "asteroid": NOT_REACHED}
    assert second == dict.fromkeys((OURS, "eddl", "asteroid"), NOT_REACHED)
    assert figures(list(results.values()))["best_peer_ratio"]["lab-1000"]["gpt_10m"] is None


def test_what_failed_before_and_is_measured_now_has_not_failed() -> None:
    result = Result(CELLS[0])
    result.add("asteroid", None, NOT_REACHED)
    result.add("asteroid", Rate(50.0, 100.0), None)
    assert result.errors == {}
    assert result.part("asteroid") == 0.5

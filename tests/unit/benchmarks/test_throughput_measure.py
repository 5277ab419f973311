"""What is left of a cell when our own runtime fails in the middle of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.throughput import measure, others
from benchmarks.throughput.cells import OURS, QUICK, Cell
from benchmarks.throughput.measure import NOT_REACHED, Rate, Result
from benchmarks.throughput.report import figures
from benchmarks.time_limit import MARGIN, QUICK_S, TimeLimit
from potluck.settings.fleet_file import read_fleet
from potluck.types import Fleet

CELLS = [Cell("lab-1000", "gpt_10m"), Cell("lab-100", "gpt_10m")]
ONE_S, PAIR_S = (measure.SHARED_S + count * measure.CELL_S for count in (1, 2))
TRANSPORT_S = 20.0  # what the cost of moving bytes takes to measure
BENCH = replace(QUICK, peers=("ddp", "pipelining-1f1b"), planners=("eddl", "asteroid"))


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


class _Machine:
    """Plain trainers on a machine that becomes slower: three quarters as fast with brief micro-batches."""

    def __init__(self, brief: bool) -> None:
        self.brief, self.is_brief = (24, False) if brief else (120, True)
        self.speed, self.asked = 100.0, list[int | None]()

    def burst(self, micro_batch: int | None = None) -> float:
        self.asked.append(micro_batch)
        return self.speed * (0.75 if micro_batch == 24 else 1.0)


@pytest.mark.parametrize(("brief", "asked"), [(False, [120, 120, 120, 120]), (True, [24, 24, None, 24, 24, 24])])
def test_the_ideal_is_that_of_the_best_micro_batch_also_where_brief_ones_stand_for_it(
    brief: bool, asked: list[int | None]
) -> None:
    machine: Any = _Machine(brief)
    yardstick = measure.Yardstick(machine)
    assert yardstick.beside(lambda: 50.0) == Rate(50.0, 100.0)

    def slower() -> float:
        machine.speed = 60.0
        return 40.0

    assert yardstick.beside(slower) == Rate(40.0, 80.0)
    assert machine.asked == asked


def test_what_was_measured_before_ours_failed_counts_and_who_failed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "Ours", _Failing)
    monkeypatch.setattr(measure, "_set_lines", lambda bed, cell: None)
    results = {cell: Result(cell, {"ddp": [Rate(50.0, 100.0)]}) for cell in CELLS}
    bed: Any = None
    yardstick: Any = _Yardstick()
    measure._measure_ours(BENCH, bed, CELLS, results, tmp_path, yardstick)
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


def test_what_other_code_reached_in_a_cell_does_not_count_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measured(bench: Any, cells: list[Cell], results: dict[Cell, Result], logs: Path) -> None:
        for cell in cells:
            results[cell].add(OURS, Rate(90.0, 100.0), None)

    monkeypatch.setattr(measure, "_measure", measured)
    bench = replace(QUICK, cells=(CELLS[0],), repeats=2)
    for again, parts in ((False, [0.9, 0.9]), (True, [0.5, 0.9, 0.9])):
        before = [Result(cell, {OURS: [Rate(50.0, 100.0)]}, when=["before"]) for cell in CELLS]
        *_, (first, other) = measure.run(bench, tmp_path, "now", before, again)
        assert [rate.part for rate in first.rates[OURS]] == parts
        assert first.when == ["before"] * again + ["now", "now"]
        assert other.part(OURS) == 0.5


def test_a_cell_that_cannot_be_measured_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(bench: Any, cells: list[Cell], results: dict[Cell, Result], logs: Path) -> None:
        results[cells[0]].add("ddp", Rate(30.0, 100.0), None)
        if cells[0].model == "gpt_10m":
            raise RuntimeError("out of time after 400 s")

    monkeypatch.setattr(measure, "_measure", measured)
    bench = replace(BENCH, cells=(CELLS[0], Cell("rooms", "resnet50")))
    *_, (first, other) = measure.run(bench, tmp_path, "now")
    assert first.part("ddp") == 0.3
    systems = ("pipelining-1f1b", OURS, "eddl", "asteroid")
    assert first.errors == dict.fromkeys(systems, "out of time after 400 s")
    assert capsys.readouterr().err.count("given up: out of time after 400 s") == 1
    assert (other.part("ddp"), other.errors) == (0.3, {})


def test_what_a_quick_run_usually_takes_fits_its_limit() -> None:
    everything = sum(measure._usual_s(cells) for cells in measure._alike(QUICK.cells))
    assert TRANSPORT_S + MARGIN * everything < QUICK_S


@pytest.mark.parametrize(
    ("seconds", "measured"),
    [
        (MARGIN * (PAIR_S + ONE_S), ["lab-1000:gpt_10m", "lab-100:gpt_10m", "rooms:gpt_10m"]),
        (MARGIN * PAIR_S, ["lab-1000:gpt_10m", "lab-100:gpt_10m"]),
        (MARGIN * ONE_S, ["lab-1000:gpt_10m"]),
        (ONE_S, []),
    ],
)
def test_cells_for_which_there_is_no_time_are_left_out_the_last_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, measured: list[str]
) -> None:
    now_s, found = [0.0], list[str]()

    def measures(bench: Any, cells: list[Cell], results: dict[Cell, Result], logs: Path) -> None:
        found.extend(cell.word for cell in cells)
        now_s[0] += PAIR_S if len(cells) > 1 else ONE_S

    monkeypatch.setattr(measure, "_measure", measures)
    cells, limit = (*CELLS, Cell("rooms", "gpt_10m")), TimeLimit(seconds, lambda: now_s[0])
    list(measure.run(replace(BENCH, cells=cells), tmp_path, "now", limit=limit))
    assert found == measured
    assert limit.left_out == [cell.word for cell in cells if cell.word not in measured]


def test_a_run_is_out_of_memory_only_if_a_process_was_killed_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bed:
        devices = ("a",)
        killed = 1  # by something before

        def oom_kills(self, device: str) -> int:
            return self.killed

        def address(self, device: str) -> str:
            return "10.0.0.1"

    def fails(killing: int, bed: Any, *_: object) -> dict[str, float]:
        bed.killed += killing
        raise RuntimeError("it ended")

    for killing, words in ((0, "it ended"), (1, "out of memory: it ended")):
        monkeypatch.setattr(others, "_train", partial(fails, killing))
        assert others.peer(Bed(), CELLS[0], "ddp", [8], 1.0).error == words  # type: ignore[arg-type]


class _Lines:
    """A testbed of which only quotas and lines are known."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.devices = fleet, tuple(device.name for device in fleet.devices)
        self.quotas: dict[str, float | None] = {d.name: d.speed for d in fleet.devices}
        self.lines: dict[str, float | None] = dict.fromkeys(self.devices, 12.5e6)

    def set_quota(self, device: str, cores: float | None) -> None:
        self.quotas[device] = cores

    def bandwidth(self, device: str) -> float | None:
        return self.lines[device]

    def set_bandwidth(self, device: str, bytes_s: float | None) -> None:
        self.lines[device] = bytes_s


def test_whoever_starts_has_no_limits_and_whoever_is_measured_has_the_line_of_the_cell() -> None:
    fleet = read_fleet(CELLS[0].fleet_file)  # 1 Gbit/s; the lines of the bed are those of another cell
    bed = _Lines(fleet)
    with others.unhurried(bed) as hurry:  # type: ignore[arg-type]
        assert set(bed.lines.values()) == set(bed.quotas.values()) == {None}
        hurry()
        assert set(bed.lines.values()) == {12.5e6}
        assert bed.quotas == {device.name: device.speed for device in fleet.devices}
    with pytest.raises(RuntimeError, match="it ended"), others.unhurried(bed):  # type: ignore[arg-type]
        raise RuntimeError("it ended")
    assert set(bed.lines.values()) == {12.5e6}

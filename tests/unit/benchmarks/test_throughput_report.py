"""Figures of the throughput benchmark, from measurements that are given."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.throughput.cells import Cell, micro_batches
from benchmarks.throughput.measure import NOT_REACHED, Rate, Result
from benchmarks.throughput.report import chart, figures, table


def result(fleet: str = "lab-1000") -> Result:
    found = Result(Cell(fleet, "resnet50"))
    for rate in (80.0, 90.0):
        found.add("potluck", Rate(rate, 100.0), None)
    found.add("ddp", Rate(34.0, 200.0), None)  # twice as fast a machine
    found.add("asteroid", Rate(68.0, 100.0), None)
    found.add("pipelining-1f1b", None, "out of memory: rank 3")
    found.plans["potluck"] = {
        "predicted_s": 240 / 90 * 1.1,
        "plan": "6x40",
    }  # the last plan took what the last rate says
    return found


def test_ours_is_compared_with_the_ideal_and_with_the_best_of_the_others() -> None:
    found = figures([result(), result("lab-100")])
    assert set(found["cells"]) == {"lab-1000", "lab-100"}
    cell = found["cells"]["lab-1000"]["resnet50"]
    assert cell.pop("pipelining-1f1b") is None
    assert cell == pytest.approx({"potluck": 85.0, "ddp": 17.0, "asteroid": 68.0})
    assert found["ideal"]["lab-1000"]["resnet50"] == 100.0
    assert found["efficiency"]["lab-1000"]["resnet50"] == pytest.approx(0.85)
    assert found["best_peer_ratio"]["lab-1000"]["resnet50"] == pytest.approx(85 / 68)
    assert found["ddp_ratio"]["lab-1000"]["resnet50"] == pytest.approx(5.0)
    assert found["predict_error"]["lab-1000"]["resnet50"]["potluck"] == pytest.approx(0.1)
    assert found["errors"]["lab-1000"]["resnet50"] == {"pipelining-1f1b": "out of memory: rank 3"}


def _turns(**parts: list[float]) -> Result:
    rates = {system: [Rate(100 * part, 100.0) for part in some] for system, some in parts.items()}
    return Result(Cell("lab-1000", "resnet50"), rates)


def test_the_best_other_is_another_in_each_turn() -> None:
    found = _turns(potluck=[0.8, 0.9, 0.6], ddp=[0.4, 0.3, 0.6], asteroid=[0.2, 0.6, 0.5])
    found.rates["ddp"][0] = Rate(80.0, 200.0)  # twice as fast a machine
    found.errors["pipelining-1f1b"] = "out of memory: rank 3"  # never the best
    assert figures([found])["best_peer_spread"]["lab-1000"]["resnet50"] == pytest.approx([1.0, 2.0])


def test_turns_that_somebody_lacks_are_not_compared() -> None:
    def spread(found: Result) -> object:
        return figures([found])["best_peer_spread"]["lab-1000"]["resnet50"]

    assert spread(_turns(potluck=[0.8, 0.9], ddp=[0.4], asteroid=[0.2, 0.6])) is None
    assert spread(_turns(potluck=[0.8])) is None
    assert spread(_turns(ddp=[0.4])) is None
    late = _turns(potluck=[0.8], ddp=[0.4])
    assert spread(late) == [2.0, 2.0]
    late.errors["asteroid"] = NOT_REACHED
    assert spread(late) is None
    late = _turns(potluck=[0.8], ddp=[0.4])
    late.when = ["2026-01-01 a", "2026-01-01 a"]  # each failed in one of two turns
    assert spread(late) is None


def test_who_is_faster_than_the_ideal_goes_beyond_its_line() -> None:
    quick = Result(Cell("lab-1000", "mobilenet_v2"), channels_last_gain=1.8)
    quick.add("potluck", Rate(150.0, 100.0), None)
    quick.add("ddp", Rate(75.0, 100.0), None)
    drawn = ElementTree.fromstring(chart([quick]))  # noqa: S314
    widths = [float(r.get("width", "0")) for r in drawn.iter() if r.tag.endswith("rect") and r.get("x")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    (line,) = (e for e in drawn.iter() if e.tag.endswith("line"))
    begin = next(float(r.get("x", "0")) for r in drawn.iter() if r.tag.endswith("rect") and r.get("x"))
    assert float(line.get("x1", "0")) - begin == pytest.approx(widths[0] / 1.5, abs=0.2)
    assert figures([quick])["channels_last_gain"]["lab-1000"]["mobilenet_v2"] == 1.8


def test_the_table_marks_the_best_and_says_what_failed() -> None:
    lines = table([result()]).splitlines()
    assert lines[0].startswith("| fleet | model | potluck |")
    assert "**85.0**" in lines[2]
    assert "| failed |" in lines[2]


def test_the_chart_is_a_picture_with_a_bar_for_every_system_that_ran() -> None:
    root = ElementTree.fromstring(chart([result()]))  # noqa: S314 - our own text
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("height") != "100%"]
    assert [float(bar.get("width", 0)) for bar in bars] == pytest.approx([0.85 * 620, 0.17 * 620, 0.68 * 620], abs=0.1)


def test_micro_batches_make_up_the_batch() -> None:
    assert all(size * count == 120 for size, count in micro_batches(120))

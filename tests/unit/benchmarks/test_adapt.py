"""What the benchmark of overlapping rounds makes of its measurements."""

from __future__ import annotations

from typing import Any

import click
import pytest
from msgspec.structs import replace

from benchmarks.adapt.__main__ import _named, summary, table
from benchmarks.adapt.rounds import Trained, busiest_line_s
from benchmarks.throughput.cells import Cell
from potluck.plan.baselines import PLANNERS
from tests.unit.plan.instances import a_model, a_profile

CELL = Cell("lab-100", "mobilenet_v2")


def bound(*round_s: float, share: float) -> dict[str, Any]:
    return {"round_s": list(round_s), "share": share, "predicted_s": 1.0, "plan": "4x8 …"}


def test_the_ratio_is_that_of_the_middle_looks() -> None:
    found = {CELL: {"0": bound(1.2, 9.0, 1.3, share=0.8), "1": bound(1.0, 0.1, 1.1, share=0.95)}}
    assert summary(found) == {
        "async_over_sync": {"lab-100": {"mobilenet_v2": 1.3}}, "steady_share": {"lab-100": {"mobilenet_v2": 0.95}},
    }  # fmt: skip
    assert "lab-100" in table(found)


def test_the_share_is_that_of_the_busiest_in_each_look() -> None:
    assert Trained("", {}, 1.0, [2.0, 4.0, 1.0], [1.8, 1.0, 0.95], {}).share == 0.9


def test_what_a_plan_sends_over_its_busiest_line_is_counted() -> None:
    facts = a_model(0, 8)
    profile = a_profile(0, facts, [1.0, 1.0], bandwidth=1e6)
    plan = PLANNERS["1f1b"](facts, profile, 8, 4)
    job: Any = type("Job", (), {"facts": facts})
    slow_s = busiest_line_s(plan, job, profile)
    quick = replace(profile, links=tuple(replace(link, bandwidth_bytes_s=2e6) for link in profile.links))
    assert slow_s == pytest.approx(2 * busiest_line_s(plan, job, quick))
    assert slow_s > 0


def test_a_cell_that_is_not_known_is_refused() -> None:
    assert _named("lab-100:mobilenet_v2") == CELL
    for word in ("lab-100", "lab-100:alexnet", "moon:mobilenet_v2"):
        with pytest.raises(click.UsageError, match="give FLEET:MODEL"):
            _named(word)

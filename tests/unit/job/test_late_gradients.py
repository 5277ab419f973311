"""Who trains with late gradients and an optimizer that does not bear them is told so, with measured figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potluck.job.late_gradients import MEASURED, late_gradients_advice
from potluck.job.optimizers import SGD, Adagrad, Adam, AdamW, Muon, NAdam, Optimizer, RMSprop

ROOT = Path(__file__).resolve().parents[3]
ROWS = json.loads((ROOT / "benchmarks" / "results" / "delay.json").read_text())["delay"]


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (SGD(lr=0.1), ("optimizer SGD: ", "0.24, in lock-step 0.14", "NAdam (0.11)")),
        (SGD(lr=0.1, momentum=0.9), ("optimizer SGD, momentum 0.9: ", "0.50", "(SGD with it: 0.25)")),
        (SGD(lr=0.1, momentum=0.9, nesterov=True), ("optimizer SGD, Nesterov 0.9: ", "0.26", "NAdam")),
        (Adam(), ("optimizer Adam: ", "0.18", "potluck.NAdam (0.11) or give it feedback=1.0 (AdamW with it: 0.10)")),
        (AdamW(), ("optimizer AdamW: ", "0.18, in lock-step 0.03", "NAdam")),
        (RMSprop(), ("optimizer RMSprop: ", "0.33", "NAdam")),
        (Adagrad(), ("optimizer Adagrad: ", "0.35", "NAdam")),
        (Muon(), ("optimizer Muon: ", "loss on text 2.34, in lock-step 2.13", "give it feedback=1.0 (2.25)")),
    ],
    ids=repr,
)
def test_an_optimizer_that_loses_is_named_with_its_gap_and_what_to_take_instead(
    optimizer: Optimizer, words: tuple[str, ...]
) -> None:
    line = late_gradients_advice(optimizer, 1)
    assert [w for w in words if w not in line] == []
    assert "\n" not in line


@pytest.mark.parametrize("optimizer", [NAdam(), AdamW(feedback=1.0), Muon(feedback=0.5)], ids=repr)
def test_nothing_is_said_to_those_that_bear_it(optimizer: Optimizer) -> None:
    assert late_gradients_advice(optimizer, 1) == ""


def test_nothing_is_said_in_lock_step() -> None:
    assert late_gradients_advice(AdamW(), 0) == ""


def test_the_figures_are_those_that_were_measured() -> None:
    found = {(job, row): ROWS[job][row] for job, row in MEASURED}
    measured = {
        key: (round(one["lock_step"]["loss"], 3), round(one["one_late"]["loss"], 3)) for key, one in found.items()
    }
    assert measured == MEASURED


def test_the_table_of_the_page_is_what_was_measured() -> None:
    page = (ROOT / "docs" / "job.md").read_text()
    told = [line for line in page.splitlines() if line.startswith(("| digits |", "| text |"))]
    assert len(told) >= 10
    for line in told:
        job, row = (cell.strip() for cell in line.split("|")[1:3])
        one = ROWS[job][row]
        losses = f"{one['lock_step']['loss']:.3f} | {one['one_late']['loss']:.3f}"
        spread = f"{one['gap']:+.3f} ({one['least']:+.3f} to {one['most']:+.3f})"
        assert line == f"| {job} | {row} | {losses} | {spread} |"

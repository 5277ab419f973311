"""Which cells the throughput benchmark measures, and what it says to those that there are not."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.throughput.__main__ import chosen, main
from benchmarks.throughput.cells import FULL, QUICK, Cell


def test_cells_are_chosen_by_fleet_or_by_fleet_and_model() -> None:
    assert chosen(QUICK, (), (), None) == QUICK
    words = ("lab-100", "nanos-1000:resnet50", "lab-100:resnet50")
    assert chosen(QUICK, words, (), 2).cells == (
        Cell("lab-100", "mobilenet_v2"), Cell("lab-100", "resnet50"), Cell("nanos-1000", "resnet50"),
    )  # fmt: skip
    assert chosen(FULL, words, (), 2).repeats == 2
    smaller = Cell("lab-1000", "mobilenet_v2", 120)
    assert chosen(QUICK, ("lab-1000/120:mobilenet_v2",), (), None).cells == (smaller,)
    assert chosen(FULL, ("lab-1000/120",), (), None).cells == (smaller,)


def test_systems_are_chosen_by_name() -> None:
    few = chosen(FULL, (), ("hetpipe", "ddp"), None)
    assert (few.peers, few.planners) == (("ddp",), ("hetpipe",))
    assert few.cells == FULL.cells


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nowhere", "no fleet 'nowhere'; give one of lab-100, "),
        ("lab-100:nothing", "no model 'nothing'; give one of mobilenet_v2, "),
        ("three-100", "name a model: three-100:MODEL"),
        ("lab-100/7:resnet50", "a batch of a multiple of 120, like lab-100/120:resnet50"),
        ("lab-100/7", "a batch of a multiple of 120, like lab-100/120:MODEL"),
    ],
)
def test_a_cell_that_there_is_not_is_refused_before_anything_is_measured(word: str, said: str) -> None:
    result = CliRunner().invoke(main, ["--only", word])
    assert result.exit_code == 2
    assert said in result.output

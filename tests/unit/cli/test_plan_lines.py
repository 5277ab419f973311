"""Plans and comparisons as lines: nothing is wider than the terminal, and no word is cut."""

from __future__ import annotations

import pytest

from potluck.cli.display.comparing import compare_lines
from potluck.cli.display.plan_lines import change_words, hanging, run_lines, shape_text
from potluck.plan.baselines import PLANNERS
from potluck.simulate.outlook import Outlook, run
from potluck.simulate.what_if import slowed
from potluck.types import Profile
from potluck.units import factor_text
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(0, 6)
PROFILE: Profile = a_profile(0, FACTS, [1.0, 0.5, 0.25], latency_s=0.001, memory=[8 * 10**9, 10**9, 10**5])
ROOMY: Profile = a_profile(0, FACTS, [1.0, 0.5, 0.25], latency_s=0.001, memory=[8 * 10**9, 10**9, 10**9])


def simulated(planner: str = "1f1b", count: int = 8) -> Outlook:
    return run(PLANNERS[planner](FACTS, PROFILE, 8, count), FACTS, PROFILE)


def test_a_wide_table_has_bars_and_a_narrow_one_has_not() -> None:
    found = run(PLANNERS["1f1b"](FACTS, ROOMY, 8, 8), FACTS, ROOMY)
    wide, narrow = run_lines(found, FACTS, 120), run_lines(found, FACTS, 70)
    assert any("█" in line for line in wide)
    assert not any("█" in line for line in narrow)
    assert max(len(line) for line in narrow) <= 70
    assert "█" in "".join(run_lines(simulated(), FACTS))  # where programs read, nothing is left out


def test_long_lines_are_broken_between_words_and_indented() -> None:
    line = "cut         before block 13 (layers.2.norm2), 49.2 kB a sample: one block earlier takes 5.0% longer"
    first, second = hanging([line], 80)
    assert len(first) <= 80
    assert second.startswith(" " * 12)
    assert (first + " " + second.strip()) == line
    assert hanging([line], None) == [line]
    assert hanging([""], 80) == [""]


@pytest.mark.parametrize("width", [80, 100, None])
def test_planners_are_compared_within_the_width(width: int | None) -> None:
    runs: list[tuple[str, Outlook | str]] = [(name, simulated(name)) for name in ("1f1b", "data-parallel")]
    lines = compare_lines([*runs, ("asteroid", "nothing fits " * 10)], 0.001, width)
    assert lines[0].startswith("planner")
    assert "fits" in lines[0]
    assert "no, " in "".join(lines)
    assert all(len(line) <= width for line in lines if width is not None)


def test_a_change_is_put_in_words() -> None:
    before = simulated()
    slow = slowed(PROFILE, "d2", 3.0)
    after = run(before.plan, FACTS, slow)
    assert change_words(before, after).endswith("slow as without the change") or "slower than" in change_words(
        before, after
    )
    assert "as fast as without the change" in change_words(before, before)
    words = change_words(before, simulated(count=16))
    assert "a round of 64 → 128 samples" in words
    assert "no plan (too small)" in change_words("too small", after)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (1.0, "as fast as before"),
        (1.18, "18% slower than before"),
        (2.4, "2.4 times as slow as before"),
        (0.8, "20% faster than before"),
        (0.1, "10.0 times as fast as before"),
    ],
)
def test_a_factor_is_never_a_huge_percentage(times: float, words: str) -> None:
    assert factor_text(times, "before") == words


def test_blocks_are_counted_the_same_way_everywhere() -> None:
    shape = shape_text(simulated().plan)
    assert shape.startswith("d0 0-")
    assert "[" not in shape

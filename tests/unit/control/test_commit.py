"""What becomes of a round: the rule, and that it does not matter who reports what."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.control.commit import judge
from potluck.wire.messages import LossPart, Ready

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def ready(*losses: LossPart, finite: bool = True, trouble: str = "", squares: dict[str, float] | None = None) -> Ready:
    return Ready(round=1, losses=losses, squared_norms=squares or {}, finite=finite, trouble=trouble)


@settings(deadline=None, derandomize=True)
@given(st.lists(NUMBERS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_loss_has_the_same_bits_whoever_reports_which_part(losses: list[float], chance: object) -> None:
    parts = [LossPart(i // 3, i % 3, loss, 1 / len(losses)) for i, loss in enumerate(losses)]
    squares = {f"p{i}": abs(loss) for i, loss in enumerate(losses)}
    whole = judge({"a": ready(*parts, squares=squares)}, list(squares), None, 0)
    chance.shuffle(parts)  # type: ignore[attr-defined]
    shared = {
        "b": ready(*parts[1::2], squares=dict(list(squares.items())[1::2])),
        "a": ready(*parts[::2], squares=dict(list(squares.items())[::2])),
    }
    assert judge(shared, list(squares), None, 0) == whole
    assert whole.loss == pytest.approx(sum(losses) / len(losses), abs=1e-6)


def test_the_norm_is_over_the_parameters_asked_for_and_long_gradients_are_clipped() -> None:
    reports = {"a": ready(squares={"w": 9.0, "stranger": 1e9}), "b": ready(squares={"v": 16.0})}
    long, short = (judge(reports, ("w", "v"), limit, 0) for limit in (1.0, 10.0))
    assert (long.kind, long.gradient_norm) == ("commit", 5.0)
    assert long.clip == pytest.approx(0.2, rel=1e-5)
    assert short.clip == judge(reports, ("w", "v"), None, 0).clip == 1.0


@pytest.mark.parametrize(
    "report",
    [
        ready(finite=False),
        ready(LossPart(0, 0, math.nan, 1.0)),
        ready(LossPart(0, 0, math.inf, 1.0)),
        ready(squares={"w": math.inf}),
        ready(squares={"w": math.nan}),
        ready(squares={"w": -2.0}),
    ],
)
def test_what_is_not_finite_is_tried_once_more_and_then_ends_the_run(report: Ready) -> None:
    reports = {"a": ready(squares={"v": 1.0}), "b": report}
    first, second = (judge(reports, ("v", "w"), 1.0, attempt) for attempt in (0, 1))
    assert (first.kind, second.kind) == ("retry", "stop")
    assert first.clip == 1.0


def test_the_first_device_that_saw_the_trouble_is_named() -> None:
    def reason(**reports: Ready) -> str:
        return judge(reports, ("w",), None, 1).reason

    bad = ready(finite=False)
    assert reason(a=bad, b=ready(finite=False, trouble="NaN after relu")) == "NaN after relu on device b"
    assert reason(a=ready(), b=bad, c=bad) == "non-finite gradients on device b"
    assert reason(a=ready(LossPart(0, 0, math.nan, 1.0))) == "the loss is not finite"

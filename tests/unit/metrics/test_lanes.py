"""What counts as computing, and what part of the time that was, whoever asks."""

from __future__ import annotations

import pytest

from potluck.metrics.lanes import Span, busy_part, busy_parts, computed_s, lanes, utilisation
from potluck.types import RoundRecord

SPANS = [
    Span("a", "forward", 0, 0, 0.0, 2.0),
    Span("b", "receive", 0, 0, 0.0, 2.5),
    Span("b", "forward", 0, 0, 2.5, 3.0),
    Span("b", "backward", 0, 0, 3.0, 4.0),
    Span("a", "reduce", 0, -1, 4.0, 6.0),
    Span("a", "update", 0, -1, 6.0, 6.5),
]


def of_a_round(spent_s: dict[str, dict[str, float]]) -> RoundRecord:
    return RoundRecord(
        round=0, epoch=0, term=1, samples=4, loss=1.0, learning_rate=0.1, seconds=4.0, spent_s=spent_s
    )  # fmt: skip


def test_waiting_for_others_and_for_the_verdict_is_not_computing() -> None:
    busy = {"forward": 1.0, "backward": 1.5, "weights": 0.25, "update": 0.25}
    waiting = {"order": 0.5, "receive": 0.25, "reduce": 0.125, "verdict": 0.125}
    assert busy_parts(of_a_round({"a": busy | waiting, "b": busy, "c": waiting})) == {"a": 0.75, "b": 1.0, "c": 0.0}


def test_a_device_that_said_nothing_computed_nothing() -> None:
    assert busy_parts(of_a_round({"a": {}})) == {"a": 0.0}
    assert busy_parts(of_a_round({})) == {}


def test_no_part_is_more_than_all() -> None:
    assert busy_part(1.0, 4.0) == 0.25
    assert busy_part(5.0, 4.0) == 1.0
    assert busy_part(1.0, 0.0) == 0.0


def test_simulated_seconds_are_counted_by_device_and_idle_ones_have_none() -> None:
    assert computed_s(SPANS, ("a", "b", "c")) == {"a": 2.5, "b": 1.5, "c": 0.0}


def test_utilisation_is_the_mean_over_devices() -> None:
    assert utilisation([2.0, 1.0, 0.0], 4.0) == pytest.approx(0.25)
    assert utilisation([2.0], 0.0) == 1.0
    assert utilisation([], 4.0) == 1.0


def test_lanes_have_what_touches_the_window_in_the_order_of_the_devices() -> None:
    found = lanes(SPANS, ("b", "a", "c"), 2.0, 4.0)
    assert list(found) == ["b", "a", "c"]
    assert [span.kind for span in found["b"]] == ["receive", "forward", "backward"]
    assert found["a"] == found["c"] == []
    assert [span.kind for span in lanes(SPANS, ("a", "b"), 1.5, 6.0)["a"]] == ["forward", "reduce"]

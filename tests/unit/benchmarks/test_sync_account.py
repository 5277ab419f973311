"""How busy devices were, and how much they trained."""

from __future__ import annotations

import pytest

from benchmarks.sync.account import busy, ends_s, samples_per_s
from potluck.metrics.records import PushRecord


def told(*pushes: tuple[float, str]) -> list[PushRecord]:
    """When somebody pushed 64 samples that took it a CPU second."""
    return [
        PushRecord(
            version=n, device=device, round=0, epoch=0, steps=2, samples=64, loss=1.0, skipped="", reason="",
            cpu_s=1.0, at_s=at_s,
        )
        for n, (at_s, device) in enumerate(pushes, start=1)
    ]  # fmt: skip


def test_what_is_not_pushed_yet_at_the_end_is_no_time_in_which_nobody_trained():
    pushes = told((2.0, "a"), (4.0, "b"), (4.0, "a"), (6.0, "a"))
    assert ends_s(pushes, ("a", "b")) == {"a": 6.0, "b": 4.0}
    assert busy(pushes, {"a": 1.0, "b": 0.5}) == 4.0 / (6.0 + 0.5 * 4.0)
    assert samples_per_s(pushes, ("a", "b")) == 3 * 64 / 6.0 + 64 / 4.0


def test_who_stopped_pushing_or_never_did_is_held_to_the_end():
    pushes = told((1.0, "a"), (2.0, "a"), *((float(at_s), "b") for at_s in range(1, 9)))
    assert ends_s(pushes, ("a", "b", "c")) == {"a": 8.0, "b": 8.0, "c": 8.0}
    assert busy(pushes, {"a": 1.0, "b": 1.0, "c": 2.0}) == pytest.approx(10.0 / 32.0)
    assert busy([], {"a": 1.0}) == 0.0
    assert samples_per_s([], ("a",)) == 0.0

"""A device that becomes slow is noticed; one round that is slow, or a device that wavers, is not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.control.drift import WINDOW, Drift


def settled(drift: Drift, rounds: int = 40) -> None:
    for _ in range(rounds):
        assert drift.see({"a": 1.0, "b": 2.0}) == {}


def test_a_device_that_becomes_slow_is_noticed_within_a_few_rounds() -> None:
    drift = Drift()
    settled(drift)
    found = [drift.see({"a": 1.0, "b": 8.0}) for _ in range(WINDOW)]
    noticed = [f for f in found if f]
    assert noticed == [{"b": 4.0}]  # once
    assert found.index(noticed[0]) < WINDOW


def test_one_slow_round_is_nothing() -> None:
    drift = Drift()
    settled(drift)
    assert drift.see({"a": 50.0, "b": 2.0}) == {}
    settled(drift, 3 * WINDOW)


def test_everybody_a_little_slower_is_nothing() -> None:
    drift = Drift()
    settled(drift)
    assert not any(drift.see({"a": 1.2, "b": 2.4}) for _ in range(30))


def test_another_plan_starts_anew() -> None:
    drift = Drift()
    settled(drift)
    drift.adopted()
    assert not any(drift.see({"a": 9.0, "b": 0.1}) for _ in range(30))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.integers(1, 40))
def test_a_device_that_wavers_changes_the_plan_ever_less_often(every: int) -> None:
    drift = Drift()
    changes = 0
    for round in range(2000):
        slow = round // every % 2 == 1
        if drift.see({"a": 3.0 if slow else 1.0}):
            changes += 1
            drift.adopted()  # as if a plan came of it
    assert changes <= 8  # 12 + 24 + 48 + … rounds

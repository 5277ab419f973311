"""A run starts again after losses, and stops at a batch that kills."""

from __future__ import annotations

from potluck.control.setbacks import Setbacks


def test_losses_of_different_rounds_are_survived() -> None:
    setbacks = Setbacks()
    assert all(setbacks.note(round, True, (f"d{round}",)) is None for round in range(10))


def test_the_second_victim_of_one_round_is_the_last() -> None:
    setbacks = Setbacks()
    assert setbacks.note(7, True, ("a", "b")) is None  # in one moment: one cause
    assert "round 7 was the last of a and of c" in (setbacks.note(7, True, ("c",)) or "")


def test_one_lost_while_nothing_was_trained_is_no_victim() -> None:
    setbacks = Setbacks()
    assert setbacks.note(7, True, ("a",)) is None
    assert setbacks.note(7, False, ("b",)) is None
    assert setbacks.note(7, False, ("c",)) is None


def test_devices_that_never_reach_each_other_end_the_run() -> None:
    setbacks = Setbacks()
    assert [setbacks.note(2, True, ()) for _ in range(3)] == [None] * 3
    assert setbacks.note(2, True, ()) is not None
    assert setbacks.note(3, True, ()) is None

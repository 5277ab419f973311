"""A run starts again after losses, and stops at a batch that kills."""

from __future__ import annotations

from potluck.control.setbacks import Setbacks


def after(*setbacks: tuple[int, bool, tuple[str, ...]]) -> str | None:
    known = Setbacks()
    for setback in setbacks:
        assert known.too_many is None
        known = known.after(*setback)
    return known.too_many


def test_losses_of_different_rounds_are_survived() -> None:
    assert after(*((round, True, (f"d{round}",)) for round in range(10))) is None


def test_the_second_victim_of_one_round_is_the_last() -> None:
    one_moment = (7, True, ("a", "b"))  # one cause
    assert after(one_moment) is None
    assert "round 7 was the last of a and of c" in (after(one_moment, (7, True, ("c",))) or "")


def test_one_lost_while_nothing_was_trained_is_no_victim() -> None:
    assert after((7, True, ("a",)), (7, False, ("b",)), (7, False, ("c",))) is None


def test_devices_that_never_reach_each_other_end_the_run() -> None:
    unreached = (2, True, ())
    assert after(unreached, unreached, unreached) is None
    assert after(unreached, unreached, unreached, unreached) is not None
    assert after(unreached, unreached, unreached, (3, True, ())) is None

"""Who is awaited while devices join, in words."""

import pytest

from potluck.coordinator.fleet.awaiting import waiting_text

UNTIL = "20:14:05"


def test_where_only_the_number_is_known_it_is_said_how_many_are_missing():
    text = "2 of 3 devices: nano, pi; waiting for 1 more, until 20:14:05 (4 min left)"
    assert waiting_text(["nano", "pi"], 1, UNTIL, 200.0) == text
    assert waiting_text([], 1, UNTIL, 300.0) == "0 of 1 device; waiting for 1 more, until 20:14:05 (5 min left)"


def test_where_names_are_known_the_missing_are_named():
    text = waiting_text(["nano"], ["desk", "pi"], UNTIL, 61.0)
    assert text == "1 of 3 devices: nano; waiting for desk, pi, until 20:14:05 (2 min left)"


def test_when_all_are_here_nobody_is_awaited():
    assert waiting_text(["nano", "pi"], 0, UNTIL, 100.0) == "2 of 2 devices: nano, pi"


def test_forty_devices_are_one_short_line():
    names = [f"pi{number}" for number in range(40)]
    text = waiting_text(names[:30], names[30:], UNTIL, 100.0)
    assert text.startswith("30 of 40 devices: pi0, pi1, pi2, pi3, pi4, pi5, pi6 and 23 more; waiting for pi30, ")
    assert "pi36 and 3 more, until" in text
    assert len(text) < 200


@pytest.mark.parametrize(
    ("left_s", "text"),
    [(300.0, "5 min"), (60.1, "2 min"), (60.0, "60 s"), (50.1, "60 s"), (11.0, "20 s"), (3.0, "10 s"), (-0.1, "10 s")],
)
def test_the_time_left_is_said_in_steps_and_never_too_little(left_s, text):
    assert waiting_text([], 1, UNTIL, left_s).endswith(f"({text} left)")

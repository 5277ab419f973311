"""What is left out where time is short."""

from __future__ import annotations

import pytest

from benchmarks.time_limit import MARGIN, TimeLimit


class _Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


def _take(limit: TimeLimit, clock: _Clock, usual_s: float, seconds: float, exactly_s: float = 0.0) -> None:
    with limit.piece(usual_s, exactly_s):
        clock.now_s += seconds


def test_on_a_machine_like_the_usual_one_everything_fits(clock: _Clock) -> None:
    limit = TimeLimit(400.0, clock)
    for name in ("first", "second", "third"):
        assert limit.fits(name, 100.0)
        _take(limit, clock, 100.0, 100.0)
    assert (limit.left_out, limit.words) == ([], "")
    assert limit.figures == {"time_limit_s": 400.0, "left_out": []}


def test_on_a_slow_machine_what_would_end_too_late_is_left_out_by_name(clock: _Clock) -> None:
    limit = TimeLimit(400.0, clock)
    assert limit.fits("first", 100.0)
    _take(limit, clock, 100.0, 200.0)
    assert not limit.fits("second", 100.0)  # it would end in time, but not if it is a tenth slower than expected
    assert limit.fits("small", 50.0)
    _take(limit, clock, 50.0, 100.0)
    assert not limit.fits("third", 100.0)
    assert limit.figures == {"time_limit_s": 400.0, "left_out": ["second", "third"]}
    assert limit.words == "left out, as 7 minutes are not enough: second, third"


def test_a_machine_that_is_quicker_than_the_usual_one_gets_more_done(clock: _Clock) -> None:
    limit = TimeLimit(100.0, clock)
    _take(limit, clock, 80.0, 40.0)
    assert limit.allows(60.0)
    assert not limit.allows(120.0)


def test_what_takes_as_long_everywhere_is_no_sign_of_a_slow_machine(clock: _Clock) -> None:
    limit = TimeLimit(300.0, clock)
    _take(limit, clock, 10.0, 110.0, exactly_s=100.0)
    assert limit.expected_s(10.0) == pytest.approx(10.0)
    assert limit.allows(10.0, exactly_s=190.0 - MARGIN * 10.0)
    assert not limit.allows(10.0, exactly_s=191.0 - MARGIN * 10.0)


def test_time_between_pieces_counts_and_makes_none_slower(clock: _Clock) -> None:
    limit = TimeLimit(300.0, clock)
    clock.now_s += 150.0
    assert limit.expected_s(100.0) == 100.0
    assert limit.allows(100.0)
    clock.now_s += 50.0
    assert not limit.allows(100.0)


def test_a_piece_that_fails_says_nothing_of_others(clock: _Clock) -> None:
    limit = TimeLimit(300.0, clock)
    with pytest.raises(RuntimeError), limit.piece(100.0):
        raise RuntimeError("it ended early")
    assert limit.expected_s(100.0) == 100.0


def test_a_piece_is_done_if_there_is_time_for_it(clock: _Clock) -> None:
    limit = TimeLimit(200.0, clock)

    def piece() -> str:
        clock.now_s += 150.0
        return "done"

    assert limit.within("first", 100.0, piece) == "done"
    assert limit.within("second", 100.0, piece) is None
    assert (limit.left_out, clock.now_s) == (["second"], 1150.0)


def test_without_a_limit_everything_fits(clock: _Clock) -> None:
    limit = TimeLimit(None, clock)
    _take(limit, clock, 1.0, 10.0**6)
    assert limit.fits("any", 10.0**6)
    assert limit.figures == {"time_limit_s": None, "left_out": []}

"""Emulated bandwidth, on a clock of our own."""

from __future__ import annotations

import pytest

from potluck.wire.pacing import Pacer


def test_a_message_leaves_after_its_transmission_time_and_the_next_waits_for_it() -> None:
    pacer = Pacer(1000.0)
    assert pacer.release_at(500, now=10.0) == pytest.approx(10.5)
    assert pacer.release_at(500, now=10.1) == pytest.approx(11.0)


def test_an_idle_line_saves_up_nothing() -> None:
    pacer = Pacer(1000.0)
    pacer.release_at(500, now=0.0)
    assert pacer.release_at(1000, now=100.0) == pytest.approx(101.0)


def test_forgetting_frees_the_line() -> None:
    pacer = Pacer(1000.0)
    pacer.release_at(10**6, now=0.0)
    pacer.forget()
    assert pacer.release_at(1000, now=1.0) == pytest.approx(2.0)


def test_without_a_limit_nothing_waits() -> None:
    pacer = Pacer(None)
    assert [pacer.release_at(10**9, now=1.0) for _ in range(3)] == [1.0, 1.0, 1.0]

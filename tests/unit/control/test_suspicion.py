"""A device that is silent: gone, or only slow?"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.control.suspicion import Suspicion

PING_S, LOOK_S, HOUR_S = 0.5, 0.125, 3600.0


def noticed_after(arrivals: list[float], gone_s: float) -> float:
    """Seconds after which a device is suspected that was last heard before `gone_s`."""
    it = Suspicion(0.0)
    for at in arrivals:
        if at <= gone_s:
            it.heard(at)
    now = gone_s
    while it.judge(now).kind != "suspected":
        now += LOOK_S
    return now - gone_s


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.49])
def test_silence_is_noticed_within_three_seconds_on_a_calm_network(phase: float) -> None:
    arrivals = [i * PING_S + 0.01 for i in range(200)]
    assert noticed_after(arrivals, 60.0 + phase) <= 3.0


def test_a_process_that_is_held_up_for_two_seconds_is_slow_and_not_suspected() -> None:
    it = Suspicion(0.0)
    it.heard(0.5)
    assert it.judge(1.0).kind == "alive"
    assert it.judge(2.9).kind == "slow"
    it.heard(3.0)
    assert it.judge(3.1).kind == "alive"


def test_after_long_silences_it_is_given_longer_and_later_no_more() -> None:
    it = Suspicion(0.0)
    it.heard(0.5)
    calm = it.allowed_s(0.5)
    it.heard(3.0)
    assert it.allowed_s(3.0) > calm + 1.5
    for i in range(400):
        it.heard(3.5 + i * PING_S)
    assert it.allowed_s(203.5) == calm


@given(gaps=st.lists(st.floats(0.0, 30.0), max_size=40))
def test_no_silence_is_allowed_for_ever(gaps: list[float]) -> None:
    it, now = Suspicion(0.0), 0.0
    for gap in gaps:
        now += gap
        it.heard(now)
    assert it.judge(now + 12.1).kind == "suspected"
    assert it.judge(now).kind != "suspected"


def heard_over_a_bad_line(dice: random.Random) -> list[float]:
    """When answers to pings arrive in an hour of jitter, spikes of up to two seconds, stalls of two, and throttling."""
    arrivals, last, quiet_until = [], 0.0, 0.0
    held_until, spike_until, spike_s = 0.0, 0.0, 0.0
    jitter_s, sent = 0.0, 0.0
    while sent < HOUR_S:
        if dice.random() < 1 / 240:  # the network's mood
            jitter_s = dice.choice((0.0, 0.05, 0.3, 0.8))
            quiet_until = sent + 10.0  # a stall in its first second could not be told from an end within three
        if sent > quiet_until and dice.random() < 1 / 60:
            quiet_until = sent + 5.0
            if dice.random() < 0.5:
                held_until = sent + 2.0
            else:
                spike_until, spike_s = sent + dice.uniform(0.5, 3.0), dice.uniform(1.0, 2.0)
        answered = max(sent, held_until) + dice.uniform(0.0, 0.1)  # a tenth of a core is throttled
        late = dice.lognormvariate(-5.0, 0.5) + dice.uniform(0.0, jitter_s) + (spike_s if sent < spike_until else 0.0)
        last = max(last, answered + min(late, 2.0))  # in order
        arrivals.append(last)
        sent += PING_S
    return arrivals


@pytest.mark.parametrize("seed", range(100))
def test_nobody_is_taken_for_dead_in_an_hour_on_a_bad_line(seed: int) -> None:
    it = Suspicion(0.0)
    worst = 0.0
    for at in heard_over_a_bad_line(random.Random(seed)):  # noqa: S311 - to be repeated
        assert it.judge(at).kind != "suspected", f"after {at:.1f} s"
        worst = max(worst, at - it._heard_s)
        it.heard(at)
    assert worst > 2.0  # it was a bad line

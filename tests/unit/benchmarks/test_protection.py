"""What copies cost, from the rounds of one run."""

from __future__ import annotations

import pytest

from benchmarks.recovery.protection import protection
from benchmarks.recovery.session import Outcome
from potluck.metrics.records import CopyRecord


def an_outcome(copies: list[CopyRecord], slower_from_s: float = 1e9) -> Outcome:
    """Rounds of a second and two CPU seconds; those between 5 s and 9 s take 1.5 s and three. From some time on the
    whole machine is half as fast."""
    outcome = Outcome(began_s=100.0, copies=copies)
    now_s, cpu_s = 100.0, 50.0
    while now_s < 140:
        slow, mood = 5 <= now_s - 100 < 9, 2.0 if now_s - 100 >= slower_from_s else 1.0
        now_s += mood * (1.5 if slow else 1.0)
        cpu_s += mood * (3.0 if slow else 2.0)
        outcome.committed_s.append(now_s)
        outcome.cpu_s.append(cpu_s)
    return outcome


def test_what_a_copy_costs_is_spread_over_its_period() -> None:
    found = protection(an_outcome([CopyRecord(round=5, seconds=4.0, period_s=20.0, at_s=9.0)]))
    assert found is not None
    assert found.copies == 1
    assert found.cpu == pytest.approx(0.075, abs=0.01)  # three rounds, each half as dear again, in twenty
    assert found.time == pytest.approx(0.075, abs=0.01)
    assert found.quiet_rounds == 17  # of 37: those after the period may belong to the next copy


def test_nothing_is_said_of_a_run_without_copies_or_without_quiet_rounds() -> None:
    assert protection(an_outcome([])) is None
    assert protection(an_outcome([CopyRecord(round=5, seconds=40.0, period_s=20.0, at_s=41.0)])) is None


def test_the_mood_of_the_machine_long_after_a_copy_is_no_matter() -> None:
    copy = CopyRecord(round=5, seconds=4.0, period_s=30.0, at_s=9.0)
    usual, moody = protection(an_outcome([copy])), protection(an_outcome([copy], slower_from_s=17.0))
    assert usual is not None
    assert moody is not None
    assert moody.time == pytest.approx(usual.time, abs=0.002)


def test_how_sure_it_is_follows_from_how_much_copies_differ() -> None:
    one = CopyRecord(round=5, seconds=4.0, period_s=12.0, at_s=9.0)
    two = CopyRecord(round=20, seconds=4.0, period_s=12.0, at_s=24.0)  # it cost nothing
    found = protection(an_outcome([one, two]))
    alone = protection(an_outcome([one]))
    assert found is not None
    assert alone is not None
    assert alone.cpu_error is None
    assert found.cpu_error == pytest.approx(found.cpu)  # 2x and 0: so much is x unsure

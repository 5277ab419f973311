"""What the recovery benchmark expects of its scenarios, and what it makes of their records."""

from __future__ import annotations

import pytest

from benchmarks.recovery.scenarios import scenarios
from benchmarks.recovery.session import Outcome
from potluck.metrics.records import IncidentRecord
from potluck.types import RoundRecord


def test_a_device_is_lost_in_every_scenario_but_four() -> None:
    quick = {s.name: s.needs_loss for s in scenarios(quick=True)}
    assert len(quick) == 15
    assert [name for name, lost in quick.items() if not lost] == [
        "kill and restart the coordinator", "the coordinator dies between ledger and commit", "leave in order",
        "part two that talk to each other",
    ]  # fmt: skip
    assert quick["one way only, to the coordinator"]
    assert len(list(scenarios(quick=False))) == 30


def an_outcome(*commits: tuple[int, float, float], lost_s: float) -> Outcome:
    """Rounds with what each took and when it was committed, and a loss."""
    lost = IncidentRecord(kind="lost", round=0, device="b", what="b is gone", action="goes on", at_s=lost_s)
    return Outcome(
        incidents=[lost],
        rounds=[a_round(number, seconds) for number, seconds, _ in commits],
        committed_s=[at_s for _, _, at_s in commits],
    )


def a_round(number: int, seconds: float) -> RoundRecord:
    return RoundRecord(round=number, epoch=0, term=1, samples=8, loss=1.0, learning_rate=0.1, seconds=seconds)


def test_recovery_counts_to_the_first_round_that_is_new() -> None:
    before = [(0, 1.0, 1.0), (1, 1.0, 2.0), (2, 1.0, 3.0)]
    again = [(1, 2.0, 6.0), (2, 2.0, 8.0), (3, 2.0, 10.0)]  # two rounds trained again by a slow plan, then a new one
    soon = [(4, 0.5, 10.5), (5, 0.5, 11.0), (6, 0.5, 11.5), (7, 0.5, 12.0)]  # and a faster plan
    found = an_outcome(*before, *again, *soon, lost_s=3.5).recover_rounds()
    assert found == pytest.approx((10.0 - 3.5) / 2.0 - 2)


def test_rounds_trained_again_by_two_plans_count_as_one_each() -> None:
    before = [(number, 1.0, 1.0 + number) for number in range(5)]
    slow = [(0, 2.0, 8.0), (1, 2.0, 10.0)]  # ready a second after the loss
    fast = [(2, 0.5, 11.5), (3, 0.5, 12.0), (4, 0.5, 12.5), (5, 0.5, 13.0)]  # adopted in another second
    found = an_outcome(*before, *slow, *fast, lost_s=5.0).recover_rounds()
    assert found == pytest.approx((13.0 - 5.0) / 1.0 - 5)  # six rounds in six seconds, and two seconds beside


def test_without_a_loss_there_is_nothing_to_count() -> None:
    assert Outcome(rounds=[a_round(0, 1.0)], committed_s=[1.0]).recover_rounds() is None

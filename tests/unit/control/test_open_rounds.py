"""Which rounds may be begun and committed, whatever is reported in whatever order."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from potluck.control.open_rounds import OpenRounds

NAMES = ("a", "b", "c")
LOCK_STEP = OpenRounds(devices=NAMES[:2])


def reported(rounds: OpenRounds, *reports: tuple[str, int]) -> OpenRounds:
    for device, round in reports:
        rounds = rounds.report(device, round)
    return rounds


def test_with_a_window_of_one_the_next_round_is_begun_when_this_one_is_committed() -> None:
    begun = LOCK_STEP.begin(0)
    assert not begun.may_begin(1)
    ready = reported(begun, ("a", 0), ("b", 0))
    assert (ready.complete, ready.may_begin(1)) == ((0,), False)
    assert ready.written(0).may_begin(1)


def test_a_report_counts_once_and_only_of_an_open_round() -> None:
    begun = LOCK_STEP.begin(0)
    assert reported(begun, ("a", 0), ("a", 0)).complete == ()
    assert reported(begun, ("a", 1), ("b", 7), ("z", 0)) == begun
    assert begun.report("b", 0).awaited(0) == ("a",)


def test_what_is_ready_first_waits_for_the_round_before_it() -> None:
    both = OpenRounds(devices=("a",), window=2).begin(0).begin(1)
    second = both.report("a", 1)
    assert (second.complete, second.written(1)) == ((), second)
    assert second.report("a", 0).complete == (0, 1)
    assert second.report("a", 0).written(0).complete == (1,)


def test_a_round_that_is_tried_again_is_reported_again() -> None:
    ready = reported(LOCK_STEP.begin(0), ("a", 0), ("b", 0))
    assert ready.again(0) == LOCK_STEP.begin(0)
    assert ready.again(1) == ready


def test_what_is_abandoned_is_begun_anew() -> None:
    ready = reported(LOCK_STEP.begin(0), ("a", 0), ("b", 0))
    assert ready.abandon() == LOCK_STEP
    assert ready.written(0).begin(1).abandon() == ready.written(0)


class AnyOrder(RuleBasedStateMachine):
    """A few devices, a window, and a plain account of what was begun, reported and committed beside it."""

    @initialize(devices=st.integers(1, 3), window=st.integers(1, 4), first=st.integers(0, 5))
    def start(self, devices: int, window: int, first: int) -> None:
        self.rounds = OpenRounds(devices=NAMES[:devices], window=window, first=first)
        self.devices, self.window = set(NAMES[:devices]), window
        self.begun: dict[int, set[str]] = {}
        self.committed = list(range(first))

    def _near(self, ahead: int) -> int:
        return max(0, len(self.committed) + ahead)

    @rule(ahead=st.integers(-1, 5))
    def begin(self, ahead: int) -> None:
        round = self._near(ahead)
        fits = round == len(self.committed) + len(self.begun) and len(self.begun) < self.window
        assert self.rounds.may_begin(round) == fits
        if fits:
            self.begun[round] = set()
        self.rounds = self.rounds.begin(round)

    @rule(device=st.sampled_from((*NAMES, "z")), ahead=st.integers(-1, 5))
    def report(self, device: str, ahead: int) -> None:
        round = self._near(ahead)
        if round in self.begun and device in self.devices:
            self.begun[round].add(device)
        self.rounds = self.rounds.report(device, round)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def report_one_that_is_awaited(self, data: st.DataObject) -> None:
        round = data.draw(st.sampled_from(sorted(self.begun)))
        for device in self.rounds.awaited(round)[:1]:
            self.begun[round].add(device)
            self.rounds = self.rounds.report(device, round)

    @rule(ahead=st.integers(-1, 5))
    def again(self, ahead: int) -> None:
        if self._near(ahead) in self.begun:
            self.begun[self._near(ahead)] = set()
        self.rounds = self.rounds.again(self._near(ahead))

    @rule(ahead=st.integers(-1, 5))
    def write(self, ahead: int) -> None:
        round = self._near(ahead)
        may = round == len(self.committed) and self.begun.get(round) == self.devices
        assert self.rounds.may_commit(round) == may
        if may:
            self.committed.append(round)
            del self.begun[round]
        self.rounds = self.rounds.written(round)

    @rule()
    def abandon(self) -> None:
        self.begun.clear()
        self.rounds = self.rounds.abandon()

    @invariant()
    def it_agrees_with_the_account(self) -> None:
        if not hasattr(self, "rounds"):
            return
        assert self.rounds.first == len(self.committed)
        assert self.rounds.next == len(self.committed) + len(self.begun)
        assert len(self.begun) <= self.window
        for round, who in self.begun.items():
            assert set(self.rounds.awaited(round)) == self.devices - who
        for place, round in enumerate(self.rounds.complete):
            assert round == len(self.committed) + place
            assert self.begun[round] == self.devices
        assert msgspec.json.decode(msgspec.json.encode(self.rounds), type=OpenRounds) == self.rounds


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

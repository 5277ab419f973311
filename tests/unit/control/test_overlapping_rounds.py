"""A device's state machine where the next round begins before the last one is settled."""

from __future__ import annotations

from msgspec.structs import replace

from potluck.control.agent_events import (
    AgentEvent,
    Applied,
    Assembled,
    Cancel,
    CoordinatorGone,
    Decide,
    GaveUp,
    Halt,
    MakeCopy,
    Paused,
    Reports,
    Seek,
    Tell,
    Train,
)
from potluck.control.agent_machine import AgentState
from potluck.wire.messages import Abandon, Begin, Holding, Ready, Verdict
from tests.unit.control.test_agent_machine import PLAN, after, begin, live, prepare

STEADY = prepare(plan=replace(PLAN, schedule="steady"))
COMMIT = Verdict(round=0, kind="commit")


def going_on(round: int, *, copy: bool = False) -> Begin:
    return replace(begin(round, copy=copy), follows=True)


def ready(round: int) -> Reports:
    return Reports(ready=Ready(round=round))


# Round 0 is trained and told, and half of round 1 is done.
UNTIL: tuple[AgentEvent, ...] = (
    STEADY, Assembled(term=1), going_on(0, copy=True), Paused(), going_on(1), ready(0), Paused(),
)  # fmt: skip


def held(state: AgentState) -> tuple[AgentState, list[int]]:
    return state, [b.round for b in state.in_hand]


def test_the_next_round_is_trained_while_the_last_one_awaits_its_verdict() -> None:
    state, orders = after(STEADY, Assembled(term=1), going_on(0), Paused(), going_on(1))
    assert orders == [Train(begin=going_on(1))]
    assert held(state)[1] == [0, 1]
    assert after(going_on(2), state=after(*UNTIL)[0])[1] == []  # not before round 0 is committed


def test_a_verdict_leaves_room_for_a_round_although_its_step_comes_later() -> None:
    state, orders = after(*UNTIL, COMMIT)
    assert orders == [Decide(verdict=COMMIT)]
    state, orders = after(going_on(2), state=state)
    assert orders == [Train(begin=going_on(2))]
    state, orders = after(Applied(round=0, resting=False), state=state)
    assert state.busy == "training"
    assert state.live == live(1)
    assert orders == [MakeCopy(held=replace(live(1), live=False))]
    assert after(Applied(round=0, resting=False), state=state)[1] == []  # once only


def test_verdicts_on_two_rounds_may_come_before_the_step_of_the_first() -> None:
    second = Verdict(round=1, kind="commit")
    ends = (STEADY, Assembled(term=1), going_on(0), Paused(), begin(1), ready(0), ready(1))
    assert after(*ends, second)[1] == []  # not in this order
    state, orders = after(*ends, COMMIT, second)
    assert orders == [Decide(verdict=second)]
    state, _ = after(Applied(round=0, resting=False), Applied(round=1), state=state)
    assert state.live == live(2)
    assert not state.under_way


def test_a_term_that_is_given_up_between_rounds_is_answered_once_what_is_half_done_is_dropped() -> None:
    give_up = Abandon(run="run", term=1, reason="lost")
    state, orders = after(*UNTIL, COMMIT, give_up)
    assert orders == [Cancel(reason="lost"), Halt()]
    # What was committed before is obeyed first: the others have done it, too.
    state, orders = after(Applied(round=0, resting=False), GaveUp(), state=state)
    assert orders == [Tell(message=Holding(term=1, states=(live(1),)))]
    assert not state.under_way


def test_without_a_coordinator_what_is_half_done_is_dropped_and_what_is_held_is_kept() -> None:
    state, orders = after(*UNTIL, CoordinatorGone(why="closed"))
    assert orders == [Cancel(reason="closed"), Halt(), Seek(why="closed")]
    state, _ = after(GaveUp(), state=state)
    assert state.inventory == (live(0),)
    assert not state.under_way

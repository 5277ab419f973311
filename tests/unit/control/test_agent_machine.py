"""A device's state machine by itself."""

from __future__ import annotations

from potluck.control.agent_events import (
    AgentEvent,
    AgentOrder,
    Applied,
    Assemble,
    Assembled,
    Cancel,
    CoordinatorGone,
    Copied,
    Decide,
    GaveUp,
    HeldLongEnough,
    Keep,
    Leave,
    MakeCopy,
    Refused,
    Reports,
    RunSurvey,
    Say,
    Seek,
    Tell,
    Train,
    TrainState,
)
from potluck.control.agent_machine import AgentState, agent_transition
from potluck.job.optimizers import SGD
from potluck.simulate.small_model import even
from potluck.types import Held, IdleReason, Plan
from potluck.wire.messages import (
    Abandon,
    Begin,
    Holding,
    Interrupted,
    Meet,
    Prepare,
    Prepared,
    Probe,
    Ready,
    StandBy,
    Stop,
    Stored,
    Verdict,
)

PLAN = even(["a", "b"], 2)


def prepare(term: int = 1, round: int = 0, run: str = "run", plan: Plan = PLAN) -> Prepare:
    return Prepare(
        run=run, term=term, round=round, moves=(), plan=plan, program="", peers={}, optimizer=SGD(lr=0.1), seed=0,
        clip_norm=None, own_commit=False, window_bytes=0,
    )  # fmt: skip


def begin(round: int, *, copy: bool = False, point: int = 0) -> Begin:
    return Begin(round=round, sizes=(), total_weight=1.0, lr_scale=1.0, copy=copy, point=point)


def after(*events: AgentEvent, state: AgentState | None = None) -> tuple[AgentState, list[AgentOrder]]:
    state = state or AgentState(me="b")
    orders: list[AgentOrder] = []
    for event in events:
        state, orders = agent_transition(state, event)
    return state, orders


def live(round: int, term: int = 1) -> Held:
    return Held(term=term, stage=1, round=round, live=True)


ROUND = (begin(0), Reports(ready=Ready(round=0)))
COMMIT = Verdict(round=0, kind="commit")


def test_a_round_goes_from_order_to_commit() -> None:
    assert after(prepare())[1] == [Assemble(prepare=prepare())]
    told = [TrainState(held=live(0)), Keep(copies=()), Tell(message=Prepared(term=1))]
    assert after(prepare(), Assembled(term=1))[1] == told
    assert after(prepare(), Assembled(term=1), begin(0))[1] == [Train(begin=begin(0))]
    assert after(prepare(), Assembled(term=1), *ROUND)[1] == [Tell(message=Ready(round=0))]
    assert after(prepare(), Assembled(term=1), *ROUND, COMMIT)[1] == [Decide(verdict=COMMIT)]
    state, _ = after(prepare(), Assembled(term=1), *ROUND, COMMIT, Applied(round=0))
    assert state.inventory == (live(1),)


def test_a_verdict_that_was_not_asked_for_is_not_obeyed() -> None:
    assert after(prepare(), Assembled(term=1), begin(0), COMMIT)[1] == []
    assert after(prepare(), Assembled(term=1), *ROUND, Verdict(round=3, kind="commit"))[1] == []


def test_a_plan_that_comes_before_the_last_update_is_done_is_put_together_after_it() -> None:
    other = prepare(term=2, run="next")
    update = (prepare(), Assembled(term=1), *ROUND, COMMIT, other)
    for done in (Applied(round=0), Refused(round=0)):
        state, orders = after(*update, done)
        assert (state.phase, state.busy, orders) == ("preparing", "assembling", [])
        # Whoever gives it up now has it cancelled, and hears what is held when that is over.
        state, orders = after(Abandon(run="next", term=2, reason="lost"), state=state)
        assert orders == [Cancel(reason="lost")]
        assert after(GaveUp(why="", peer=None), state=state)[1] == [Tell(message=Holding(term=2, states=()))]


def test_it_says_what_it_holds_only_when_nothing_changes_it_any_more() -> None:
    give_up = Abandon(run="run", term=1, reason="lost")
    idle, orders = after(prepare(), Assembled(term=1), give_up)
    assert orders == [Tell(message=Holding(term=1, states=(live(0),)))]
    assert after(begin(0), state=idle)[1] == []  # and nothing more is trained
    busy, orders = after(prepare(), Assembled(term=1), *ROUND, COMMIT, give_up)
    assert orders == [Cancel(reason="lost")]
    assert after(Applied(round=0), state=busy)[1] == [Tell(message=Holding(term=1, states=(live(1),)))]
    assert after(GaveUp(), state=busy)[1] == [Tell(message=Holding(term=1, states=(live(0),)))]


def test_what_was_held_before_is_held_until_the_next_state_is_whole() -> None:
    state, _ = after(prepare(), Assembled(term=1), Abandon(run="run", term=1, reason=""), prepare(2, 0))
    assert state.inventory == (live(0),)
    state, orders = after(GaveUp(why="a peer"), state=state)
    assert orders == [Tell(message=Interrupted(term=2, text="a peer"))]
    assert state.inventory == (live(0),)
    state, _ = after(Abandon(run="run", term=2, reason=""), prepare(3, 0), Assembled(term=3), state=state)
    assert state.inventory == (live(0, 3),)


def test_one_that_measures_a_link_to_a_device_that_is_lost_says_so_and_measures_anew_without_it() -> None:
    probe, give_up = Probe(peer="a", lead=True, budget_s=1.0), Abandon(run="", term=1, reason="a is gone")
    state, orders = after(probe, GaveUp(why="a is gone", peer="a"))
    assert orders == [Tell(message=Interrupted(term=-1, text="a is gone", peer="a"))]
    assert after(give_up, state=state)[1] == [Tell(message=Holding(term=1, states=()))]
    state, orders = after(probe, give_up)
    assert orders == [Cancel(reason="a is gone")]
    state, orders = after(GaveUp(), state=state)
    assert orders == [Tell(message=Holding(term=1, states=()))]
    meet = Meet(term=2, peers={})
    assert after(meet, state=state)[1] == [RunSurvey(survey=meet)]


def test_a_plan_that_was_given_up_before_it_came_is_ignored() -> None:
    assert after(Abandon(run="run", term=4, reason=""), prepare(4))[1] == []
    assert after(prepare(2), Assembled(term=2), prepare(1))[1] == []


def test_copies_of_rounds_that_are_trained_again_are_let_go() -> None:
    old, new = Held(term=1, stage=1, round=1), Held(term=1, stage=1, round=3)
    trained = (prepare(), Assembled(term=1), Copied(held=old), Copied(held=new))
    state, orders = after(*trained)
    assert orders == [Tell(message=Stored(held=new))]
    state, orders = after(Abandon(run="run", term=1, reason=""), prepare(2, 2), Assembled(term=2), state=state)
    assert orders[1] == Keep(copies=(old,))
    assert after(begin(2, point=2), state=state)[1][0] == Keep(copies=())
    late = Held(term=1, stage=0, round=2)  # a ward's copy of a term that is over
    assert after(Copied(held=late), state=state)[1] == [Keep(copies=(old,))]


def test_after_a_commit_it_copies_what_it_is_told_to() -> None:
    rounds = (begin(0, copy=True), Reports(ready=Ready(round=0)), COMMIT, Applied(round=0))
    assert after(prepare(), Assembled(term=1), *rounds)[1] == [MakeCopy(held=Held(term=1, stage=1, round=1))]


def test_it_holds_on_when_the_coordinator_is_gone_if_it_has_something() -> None:
    gone = CoordinatorGone(why="closed")
    empty, orders = after(gone)
    words = "the coordinator is gone (closed); nothing is held here: join again when it is back"
    assert orders == [Leave(reason=words, in_order=False)]
    assert empty.phase == "over"
    state, orders = after(prepare(), Assembled(term=1), gone)
    assert orders == [Seek(why="closed")]
    assert after(HeldLongEnough(), state=state)[1] == [
        Leave(reason="the coordinator did not come back", in_order=False)
    ]
    _, orders = after(Abandon(run="run", term=1, reason="back"), state=state)
    assert orders == [Tell(message=Holding(term=1, states=(live(0),)))]
    _, orders = after(Stop(reason="finished"), state=state)  # says one that never asked for it
    assert orders == [Leave(reason="finished", in_order=False)]
    _, orders = after(Abandon(run="another", term=1, reason="back"), state=state)
    assert orders == [Tell(message=Holding(term=1, states=()))]
    impatient = AgentState(me="b", patient=False)
    assert isinstance(after(prepare(), Assembled(term=1), gone, state=impatient)[1][0], Leave)


def test_a_stop_waits_for_what_is_under_way_if_all_is_well() -> None:
    busy, orders = after(prepare(), Assembled(term=1), *ROUND, COMMIT, Stop(reason="finished"))
    assert orders == []
    assert after(Applied(round=0), state=busy)[1] == [Leave(reason="finished", in_order=True)]
    assert after(prepare(), Stop(reason="the run failed: so"))[1] == [Cancel(reason="the run failed: so")]


def said(state: AgentState, *events: AgentEvent) -> tuple[AgentState, list[str]]:
    texts = []
    for event in events:
        state, orders = agent_transition(state, event)
        texts += [order.text for order in orders if isinstance(order, Say)]
    return state, texts


def stand_by(why: str) -> StandBy:
    return StandBy(reason=IdleReason(why=why, until="a is lost"))


def test_a_device_that_the_plan_does_without_says_so_once_for_each_reason() -> None:
    state, texts = said(AgentState(me="b"), stand_by("it is 5.0% slower"), stand_by("it is 5.0% slower"))
    because = "the plan does without this device, because it is 5.0% slower"
    assert texts == [f"idle: {because}; it stays ready and takes part when a is lost"]
    state, texts = said(state, stand_by("it is 6.0% slower"))  # another figure is no other reason
    assert texts == []
    state, texts = said(state, stand_by("it is out of reach"))
    assert [text.split("; ")[0] for text in texts] == [
        "idle: the plan does without this device, because it is out of reach"
    ]


def test_one_that_took_part_meanwhile_says_it_again_and_one_that_only_gave_does_not() -> None:
    state, _ = said(AgentState(me="b"), stand_by("it is slow"))
    only_gives = (prepare(1, plan=even(["a", "c"], 2)), Assembled(term=1))
    state, texts = said(state, *only_gives, stand_by("it is slow"))
    assert texts == []
    state, texts = said(state, prepare(2), Assembled(term=2), *ROUND, stand_by("it is slow"))
    assert len(texts) == 1

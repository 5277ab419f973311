"""The coordinator's state machine by itself: whatever comes in, in whatever order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.control.cluster import ClusterStep, opened, reopened, transition
from potluck.control.cluster_events import (
    Adopt,
    Again,
    Began,
    Broken,
    Commit,
    ComputePlan,
    Event,
    GiveUpTerm,
    Holds,
    IsPrepared,
    IsReady,
    Joined,
    Lost,
    NoCause,
    Order,
    Planned,
    PrepareTerm,
    Saved,
    Settle,
    Stalled,
    StopRun,
    WantedChange,
    Written,
)
from potluck.control.cluster_state import ClusterState
from potluck.plan.schedule.window import window
from potluck.simulate.small_model import SmallModel, even
from potluck.types import COORDINATOR, Held, Plan

MODEL = SmallModel()
NAMES = ("a", "b", "c")
PLAN = even(list(NAMES), 3)
ROUNDS = 5


def begun() -> ClusterStep:
    return opened(PLAN, term=1, rounds=ROUNDS, first=0, here=NAMES, blueprint=MODEL)


def after(*events: Event) -> ClusterStep:
    state, orders = begun()
    for event in events:
        state, orders = transition(state, event, MODEL)
    return state, orders


PREPARED = tuple(IsPrepared(device=name, term=1) for name in NAMES)


def holds(device: str, round: int, term: int = 1, *copies: Held) -> Holds:
    live = Held(term=1, stage=NAMES.index(device), round=round, live=True)
    return Holds(device=device, term=term, states=(live, *copies))


def test_a_round_is_committed_when_all_are_ready_and_the_ledger_has_it() -> None:
    ready = tuple(IsReady(device=name, round=0) for name in NAMES)
    assert after(*PREPARED)[1] == [Adopt(term=1)]
    assert after(*PREPARED, Began(round=0), *ready[:2])[1] == []
    assert after(*PREPARED, Began(round=0), ready[0], ready[0], ready[0])[1] == []  # one voice each
    assert after(*PREPARED, Began(round=0), *ready)[1] == [Settle(round=0)]
    assert after(*PREPARED, Began(round=0), *ready, Written(round=0))[1] == [Commit(round=0)]
    assert after(*PREPARED, Began(round=0), *ready, Again(round=0), ready[0])[1] == []


def test_a_lone_device_is_told_of_two_rounds_more_than_the_one_it_trains() -> None:
    plan = even(["a"], 1)
    assert (window(plan), window(PLAN)) == (3, 1)
    state, _ = opened(plan, term=1, rounds=ROUNDS, first=0, here=NAMES, blueprint=MODEL)
    for event in (IsPrepared(device="a", term=1), Began(round=0), Began(round=1), Began(round=2)):
        state, _ = transition(state, event, MODEL)
    for refused in (Began(round=3), Written(round=0), WantedChange(kind="joined", why="better")):
        assert transition(state, refused, MODEL) == (state, [])
    for round in range(3):
        state, orders = transition(state, IsReady(device="a", round=round), MODEL)
        assert orders == ([Settle(round=0)] if round == 0 else [])
    assert transition(state, Written(round=0), MODEL)[1] == [Commit(round=0), Settle(round=1)]


def test_what_belongs_to_another_term_or_phase_changes_nothing() -> None:
    state, _ = after(*PREPARED)
    for event in (
        IsPrepared(device="a", term=0), IsReady(device="a", round=3), Written(round=3), holds("a", 0),
        Planned(number=0, term=9, plan=PLAN), Broken(term=0, why="late"), Stalled(), NoCause(),
    ):  # fmt: skip
        assert transition(state, event, MODEL) == (state, [])


def test_a_lost_stage_comes_from_its_copy_and_the_others_go_back_with_it() -> None:
    copies = {name: Held(term=1, stage=i, round=2) for i, name in enumerate(NAMES)}
    state, orders = after(*PREPARED)
    state = _committed(state, 4)
    state, orders = transition(state, Lost(device="a", why="gone"), MODEL)
    assert orders == [GiveUpTerm(term=1, devices=("b", "c"), reason="gone")]
    state, _ = transition(state, holds("b", 4, 1, copies["b"], copies["a"]), MODEL)  # b keeps a's copy
    state, [order] = transition(state, holds("c", 4, 1, copies["c"]), MODEL)
    assert isinstance(order, ComputePlan)
    assert order.without == ("a",)
    assert set(order.held["b"]) == set(range(0, 4))
    plan = even(["b", "c"], 2)
    state, [_, prepare] = transition(state, Planned(number=order.number, term=2, plan=plan), MODEL)
    assert isinstance(prepare, PrepareTerm)
    assert (prepare.round, prepare.term) == (2, 2)
    assert {move.held.round for move in prepare.moves} == {2}
    assert COORDINATOR not in {move.source for move in prepare.moves}


def test_a_state_of_a_stage_that_never_was_is_nobodys() -> None:
    state, _ = after(*PREPARED, Lost(device="a", why="gone"), holds("c", 0))
    odd = Holds(device="b", term=1, states=(Held(term=1, stage=9, round=0), Held(term=1, stage=-1, round=0)))
    state, [order] = transition(state, odd, MODEL)
    assert isinstance(order, ComputePlan)
    assert order.held["b"] == ()


def test_without_a_copy_everything_comes_from_the_coordinator() -> None:
    state, _ = after(*PREPARED, Saved(round=0))
    state = _committed(state, 3)
    for event in (Lost(device="a", why="gone"), holds("b", 3), holds("c", 3)):
        state, orders = transition(state, event, MODEL)
    [order] = orders
    assert isinstance(order, ComputePlan)
    _, [_, prepare] = transition(state, Planned(number=order.number, term=2, plan=even(["b", "c"], 2)), MODEL)
    assert isinstance(prepare, PrepareTerm)
    assert prepare.round == 0
    assert {move.source for move in prepare.moves} == {COORDINATOR}


def test_who_comes_back_to_a_coordinator_goes_on_where_it_was() -> None:
    state, orders = reopened(
        {1: PLAN}, rounds=ROUNDS, committed=3, saved=0, here=("a", "b"), away=("c",), blueprint=MODEL
    )
    assert orders == [GiveUpTerm(term=1, devices=("a", "b"), reason="the coordinator is back")]
    state, orders = transition(state, holds("a", 3), MODEL)
    copy = Held(term=1, stage=2, round=3)
    _, [order] = transition(state, holds("b", 3, 1, copy), MODEL)
    assert isinstance(order, ComputePlan)
    assert order.without == ("c",)


def _broken(state: ClusterState, plan: Plan | None) -> tuple[ClusterState, ComputePlan, list[Order]]:
    """The state after a and b did not reach each other, and this plan was found; what was ordered before and then."""
    term = state.term
    state, _ = transition(state, Broken(term=term, why="b did not answer", between=("a", "b")), MODEL)
    for name in state.waiting:
        live = Held(term=term, stage=NAMES.index(name), round=0, live=True)
        state, _ = transition(state, Holds(device=name, term=term, states=(live,)), MODEL)
    state, [order] = transition(state, NoCause(), MODEL)
    assert isinstance(order, ComputePlan)
    state, orders = transition(state, Planned(number=order.number, term=term + 1, plan=plan), MODEL)
    for name in state.waiting:
        state, _ = transition(state, IsPrepared(device=name, term=term + 1), MODEL)
    return state, order, orders


def test_two_that_do_not_reach_each_other_again_are_not_in_one_plan_any_more() -> None:
    state, first, _ = _broken(after(*PREPARED)[0], PLAN)
    assert first.apart == ()  # once is chance
    state, second, [_, prepare] = _broken(state, even(["b", "c"], 2))
    assert second.apart == (("a", "b"),)
    assert second.without == ()  # nobody is lost
    assert isinstance(prepare, PrepareTerm)
    assert "goes on without a" in prepare.reason
    assert "a" not in {move.source for move in prepare.moves}
    assert state.phase == "training"
    assert "a" in state.here
    wish = WantedChange(kind="plan", why="better", plan=PLAN)
    assert transition(state, wish, MODEL) == (state, [])  # not together, whatever it would gain
    for event in (Lost(device="a", why="gone"), Joined(device="a")):
        state, _ = transition(state, event, MODEL)
    assert state.apart == ()


def test_with_no_plan_that_has_only_one_of_them_it_stops() -> None:
    state, _, _ = _broken(after(*PREPARED)[0], PLAN)
    _, _, [stop] = _broken(state, None)
    assert isinstance(stop, StopRun)


def _committed(state: ClusterState, rounds: int) -> ClusterState:
    for round in range(state.committed, rounds):
        ready: list[Event] = [IsReady(device=name, round=round) for name in NAMES]
        for event in (Began(round=round), *ready, Written(round=round)):
            state, _ = transition(state, event, MODEL)
    assert state.committed == rounds
    return state


def events() -> st.SearchStrategy[Event]:
    name = st.sampled_from((*NAMES, "new"))
    number = st.integers(0, 4)
    held = st.builds(Held, term=st.integers(0, 3), stage=st.integers(-2, 4), round=number, live=st.booleans())
    plans = st.sampled_from((PLAN, even(["a", "b"], 2), even(["b", "c"], 1), even(["c"], 1), even(["a", "new"], 2)))
    return st.one_of(
        st.builds(Joined, device=name),
        st.builds(Lost, device=name, why=st.just("gone")),
        st.builds(IsPrepared, device=name, term=number),
        st.builds(Began, round=number),
        st.builds(IsReady, device=name, round=number),
        st.builds(Again, round=number),
        st.builds(Written, round=number),
        st.builds(Broken, term=number, why=st.just("broken")),
        st.builds(Holds, device=name, term=number, states=st.lists(held, max_size=3).map(tuple)),
        st.builds(Planned, number=number, term=st.integers(2, 9), plan=st.none() | plans, why=st.just("none fits")),
        st.builds(WantedChange, kind=st.sampled_from(("left", "joined")), why=st.just("so"), devices=st.tuples(name)),
        st.just(Stalled()),
        st.just(NoCause()),
    )  # fmt: skip


@settings(max_examples=300)
@given(script=st.lists(events(), max_size=40))
def test_no_sequence_of_events_breaks_it(script: list[Event]) -> None:
    state, orders = begun()
    written: set[int] = set()
    for event in script:
        if isinstance(event, Planned) and event.term <= state.term:
            continue  # numbers of terms only grow: whoever gives them sees to it
        before = state
        state, orders = transition(state, event, MODEL)
        written |= {event.round} if isinstance(event, Written) else set()
        assert_sound(before, state, orders, written)


def assert_sound(before: ClusterState, state: ClusterState, orders: list[Order], written: set[int]) -> None:
    assert set(state.waiting) <= set(state.needed) | set(state.plan.devices)
    assert (state.phase == "ended") == (before.phase == "ended" or any(isinstance(o, StopRun) for o in orders))
    for order in orders:
        match order:
            case Commit():
                assert order.round in written
                assert before.open_rounds.may_commit(order.round)
            case PrepareTerm():
                assert order.term > before.term or before.plans == {}
                assert set(order.plan.devices) <= set(state.here)
                assert {m.source for m in order.moves} <= {*before.holdings, COORDINATOR}
                assert order.round <= before.committed
            case GiveUpTerm():
                assert set(order.devices) <= set(state.here)
            case _:
                pass

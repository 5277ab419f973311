"""The coordinator's state machine. Pure: a state and what happens give the next state and what is to be done.

A term goes through these phases: *preparing* (devices put their states together), *training* (round after round). When
somebody is lost, devices do not reach each other, or the plan is to change, the term is given up: *asking* (who holds
what), perhaps *seeking* (who is the cause), *planning* (for those who are left), and the next term is prepared. It is
driven by `coordinator/coordinator.py` with sockets and clocks, and by `simulate/simulated_run.py` with neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from potluck.control.cluster_events import (
    Adopt,
    Again,
    Began,
    Broken,
    Commit,
    ComputePlan,
    Drop,
    Event,
    GiveUpTerm,
    Holds,
    Idle,
    IsPrepared,
    IsReady,
    Joined,
    Lost,
    NoCause,
    Note,
    Order,
    Planned,
    PrepareTerm,
    Saved,
    SeekCause,
    Settle,
    Stalled,
    StopRun,
    WantedChange,
    Written,
)
from potluck.control.cluster_state import Blueprint, ClusterState, held, names_of, newest, none_open, whole
from potluck.control.setbacks import Setbacks, UnreachedPair
from potluck.recover.placement import recovery_point, restart_at
from potluck.recover.repartition import estranged, in_conflict
from potluck.types import COORDINATOR, Plan

ClusterStep = tuple["ClusterState", list[Order]]
_BACK = "the coordinator is back"
_ESTRANGED = 2  # times in one round that two devices do not reach each other, and both are here


def opened(plan: Plan, *, term: int, rounds: int, first: int, here: Iterable[str], blueprint: Blueprint) -> ClusterStep:
    """A run begins, or goes on from the coordinator's copy: everything comes from there."""
    state = ClusterState(
        rounds=rounds, plan=plan, term=term, here=tuple(here), open_rounds=none_open(plan, first), saved=first
    )
    return _start(state, plan, term, "", blueprint)


def reopened(
    plans: Mapping[int, Plan], *, rounds: int, committed: int, saved: int, here: Iterable[str], blueprint: Blueprint,
    away: Iterable[str] = (), holders: Iterable[str] = (),
) -> ClusterStep:  # fmt: skip
    """The coordinator is back: it knows its terms, its ledger and its newest checkpoint, and asks the devices.

    Those of the last plan that are neither here nor away for good are awaited. Others may be holders, too: of a plan
    before, whose next one never came into force.
    """
    term = max(plans)
    plan, here = plans[term], tuple(here)
    lost = {d: f"device {d} did not come back" for d in plan.devices if d in set(away)}
    needed = tuple(dict.fromkeys((*plan.devices, *holders)))
    state = ClusterState(
        rounds=rounds, plan=plan, plans=dict(plans), term=term, here=here, saved=saved,
        open_rounds=none_open(plan, committed),
        phase="asking", needed=needed, waiting=tuple(d for d in needed if d not in lost), lost=lost,
        why=_BACK, change=WantedChange(kind="coordinator", why=_BACK),
    )  # fmt: skip
    present = tuple(d for d in needed if d in here)
    orders: list[Order] = [GiveUpTerm(term=term, devices=present, reason=state.why)]
    state, more = _all_said(state, blueprint)
    return state, orders + more


def transition(state: ClusterState, event: Event, blueprint: Blueprint) -> ClusterStep:
    """The next state, and what is to be done. Whatever does not belong to the phase or the term changes nothing."""
    if state.phase == "ended":
        return state, []
    match event:
        case Joined():
            return _joined(state, event.device)
        case Lost():
            return _lost(state, event, blueprint)
        case IsPrepared():
            return _prepared(state, event)
        case Began():
            training = state.phase == "training"
            return (replace(state, open_rounds=state.open_rounds.begin(event.round)) if training else state), []
        case IsReady():
            return _ready(state, event)
        case Again():
            return replace(state, open_rounds=state.open_rounds.again(event.round)), []
        case Written():
            return _written(state, event)
        case Saved():
            return replace(state, saved=max(state.saved, event.round)), []
        case Broken():
            underway = state.phase in ("preparing", "training") and event.term == state.term
            broken = replace(state, between=event.between)
            return _give_up(broken, event.why, blueprint) if underway else (state, [])
        case Holds():
            return _holds(state, event, blueprint)
        case Stalled():
            return _stalled(state, blueprint)
        case NoCause():
            return _decide(state, blueprint) if state.phase == "seeking" else (state, [])
        case WantedChange():
            between = state.phase == "training" and not state.open_rounds.reports
            if not between or (event.plan is not None and in_conflict(event.plan.devices, state.apart)):
                return state, []
            return _give_up(replace(state, change=event), event.why, blueprint)
        case Planned():
            return _planned(state, event, blueprint)


def _joined(state: ClusterState, device: str) -> ClusterStep:
    if device in state.here:
        return state, []
    # Whoever comes back may have another line by now.
    state = replace(state, here=(*state.here, device), apart=tuple(pair for pair in state.apart if device not in pair))
    if state.phase == "asking" and device in state.waiting:  # it waited for the coordinator, too
        return state, [GiveUpTerm(term=state.term, devices=(device,), reason=state.why)]
    return state, []


def _lost(state: ClusterState, event: Lost, blueprint: Blueprint) -> ClusterStep:
    device = event.device
    if device not in state.here:
        return state, []
    holdings = {d: h for d, h in state.holdings.items() if d != device}
    state = replace(state, here=_without(state.here, device), holdings=holdings)
    if device not in (*state.needed, *state.plan.devices):
        return state, [Idle(device=device, why=event.why)]
    silent = (*state.silent, device) if event.silent else state.silent
    lost = {**state.lost, device: event.why}
    state = replace(state, lost=lost, silent=silent, waiting=_without(state.waiting, device))
    if state.phase in ("preparing", "training"):
        return _give_up(state, event.why, blueprint)
    if state.phase == "asking":
        return _all_said(state, blueprint)
    return _decide(state, blueprint)  # anew, whatever was ordered before


def _prepared(state: ClusterState, event: IsPrepared) -> ClusterStep:
    if state.phase != "preparing" or event.term != state.term or event.device not in state.waiting:
        return state, []
    waiting = _without(state.waiting, event.device)
    if waiting:
        return replace(state, waiting=waiting), []
    release = tuple(d for d in state.leaving if d in state.here)
    here = tuple(d for d in state.here if d not in release)
    adopted = replace(state, phase="training", waiting=(), needed=state.plan.devices, leaving=(), here=here)
    return adopted, [Adopt(term=state.term, release=release)]


def _ready(state: ClusterState, event: IsReady) -> ClusterStep:
    if state.phase != "training":
        return state, []
    before, now = state.open_rounds, state.open_rounds.report(event.device, event.round)
    state = replace(state, open_rounds=now)
    return state, [Settle(round=now.first)] if now.complete and not before.complete else []


def _written(state: ClusterState, event: Written) -> ClusterStep:
    if state.phase != "training" or not state.open_rounds.may_commit(event.round):
        return state, []
    state = replace(state, open_rounds=state.open_rounds.written(event.round))
    more = [Settle(round=state.committed)] if state.open_rounds.complete else []
    return state, [Commit(round=event.round), *more]


def _give_up(state: ClusterState, why: str, blueprint: Blueprint) -> ClusterStep:
    here = tuple(d for d in state.needed if d in state.here)
    state = replace(state, phase="asking", waiting=here, holdings={}, why=why)
    orders: list[Order] = [GiveUpTerm(term=state.term, devices=here, reason=why)]
    state, more = _all_said(state, blueprint)
    return state, orders + more


def _holds(state: ClusterState, event: Holds, blueprint: Blueprint) -> ClusterStep:
    if state.phase != "asking" or event.term != state.term or event.device not in state.waiting:
        return state, []
    states = tuple(h for h in event.states if h.term in state.plans and 0 <= h.stage < len(state.plans[h.term].stages))
    holdings = {**state.holdings, event.device: states}
    return _all_said(replace(state, holdings=holdings, waiting=_without(state.waiting, event.device)), blueprint)


def _stalled(state: ClusterState, blueprint: Blueprint) -> ClusterStep:
    if state.phase != "asking":
        return state, []
    why = "is connected and does not answer"
    silent = {d: f"device {d} {why if d in state.here else 'did not come back'}" for d in state.waiting}
    orders: list[Order] = [Drop(device=d) for d in silent if d in state.here]
    here = tuple(d for d in state.here if d not in silent)
    state, more = _all_said(replace(state, here=here, waiting=(), lost={**state.lost, **silent}), blueprint)
    return state, orders + more


def _all_said(state: ClusterState, blueprint: Blueprint) -> ClusterStep:
    if state.waiting:
        return state, []
    if not state.lost and state.change is None:
        return replace(state, phase="seeking"), [SeekCause()]
    return _decide(state, blueprint)


def _decide(state: ClusterState, blueprint: Blueprint) -> ClusterStep:
    """Everybody who is left has said what it holds: how does it go on?"""
    if state.silent and not any(d in state.here and d not in state.lost for d in state.plan.devices):
        return _wait_for_the_silent(state)
    setbacks = _setbacks(state)
    if setbacks.too_many is not None:
        words = "; ".join(state.lost.values()) or state.why
        return _stop(state, f"{setbacks.too_many}; {words}", poison=bool(setbacks.victims))
    state = replace(state, apart=_apart(state, setbacks))
    change = None if state.lost else state.change
    # One that was lost and is back by now has not got what it held any more.
    gone = tuple(d for d in state.plan.devices if d not in state.here or d in state.lost)
    leaving = change.devices if change is not None and change.kind == "left" else ()
    state = replace(state, phase="planning", change=change, leaving=leaving, asked=state.asked + 1)
    wish = change.plan if change is not None else None
    order = ComputePlan(
        number=state.asked, force=state.plan, without=(*gone, *leaving), held=held(state, blueprint),
        wish=wish if wish is not None and set(wish.devices) <= set(state.here) else None,
        why="; ".join(state.lost.values()) or state.why, apart=state.apart,
    )  # fmt: skip
    return state, [order]


def _apart(state: ClusterState, setbacks: Setbacks) -> tuple[UnreachedPair, ...]:
    """Who may not be in a plan together: two that did not reach each other twice in one round; once is chance."""
    pairs = [pair for pair, times in Counter(setbacks.pairs).items() if times >= _ESTRANGED]
    return (*state.apart, *(pair for pair in pairs if set(pair) <= set(state.here) and pair not in state.apart))


def _wait_for_the_silent(state: ClusterState) -> ClusterStep:
    """Nobody is heard any more: it may well be this side that is cut off. They hold on, and look for it."""
    why = "no device could be heard any more"
    lost = {device: words for device, words in state.lost.items() if device not in state.silent}
    state = replace(
        state, phase="asking", waiting=state.silent, holdings={}, lost=lost, silent=(), why=why,
        change=WantedChange(kind="coordinator", why=why),
    )  # fmt: skip
    here = tuple(d for d in state.waiting if d in state.here)
    return state, [GiveUpTerm(term=state.term, devices=here, reason=why)]


def _setbacks(state: ClusterState) -> Setbacks:
    """With what ended the term; counted when the next one starts, as more may be lost until then."""
    if not state.lost and state.change is not None:
        return state.setbacks
    under_way = bool(state.open_rounds.reports)
    return state.setbacks.after(state.committed, under_way, tuple(state.lost), state.between)


def _planned(state: ClusterState, event: Planned, blueprint: Blueprint) -> ClusterStep:
    if state.phase != "planning" or event.number != state.asked:
        return state, []
    if event.plan is None:
        return _stop(state, event.why)
    if not set(event.plan.devices) <= set(state.here):  # a newcomer has gone again
        return _decide(replace(state, change=None), blueprint)
    # Who does not reach somebody of the plan has nothing to give: it might be to that one.
    aside = estranged(event.plan.devices, state.apart)
    holdings = {device: states for device, states in state.holdings.items() if device not in aside}
    out = sorted(aside & set(state.plan.devices) & set(state.here))
    words = f"{state.why}; goes on without {', '.join(out)}" if out else _words(state)
    return _start(replace(state, holdings=holdings), event.plan, event.term, words, blueprint)


def _start(state: ClusterState, plan: Plan, term: int, reason: str, blueprint: Blueprint) -> ClusterStep:
    """The next term: where it starts, and what moves before that."""
    held_terms = {h.term for states in state.holdings.values() for h in states}
    plans = {**{t: p for t, p in state.plans.items() if t in held_terms}, term: plan}
    known = names_of(plans, blueprint)
    wanted = {m.device: known[term, i] for i, s in enumerate(plan.stages) for m in s.group}
    holdings = {**state.holdings, COORDINATOR: (whole(state),)}
    everything = frozenset(name for names in wanted.values() for name in names)
    point = recovery_point(holdings, known, everything, newest(state))
    if point is None:
        return _stop(state, f"no state from before round {newest(state)} is left")
    restart = restart_at(point, holdings, known, wanted, blueprint.sizes)
    givers = {m.source for m in restart.moves} - {COORDINATOR, *plan.devices}
    needed = (*plan.devices, *sorted(givers))
    first_term = not state.plans
    note = Note(
        kind="lost" if state.lost else "link" if state.change is None else state.change.kind,
        devices=tuple(state.lost) or (() if state.change is None else state.change.devices),
        what="; ".join(state.lost.values()) or state.why, reason=reason, round=state.committed,
        replayed=state.committed - point, moves=restart.moves,
    )  # fmt: skip
    state = replace(
        state, phase="preparing", term=term, plan=plan, plans=plans, open_rounds=none_open(plan, point),
        needed=needed, waiting=needed, holdings={}, lost={}, silent=(), change=None, between=None, why="",
        setbacks=state.setbacks if first_term else _setbacks(state),
    )  # fmt: skip
    prepare = PrepareTerm(term=term, round=point, plan=plan, moves=restart.moves, devices=needed, reason=reason)
    return state, [prepare] if first_term else [note, prepare]


def _stop(state: ClusterState, why: str, *, poison: bool = False) -> ClusterStep:
    return replace(state, phase="ended"), [StopRun(why=why, poison=poison)]


def _words(state: ClusterState) -> str:
    """Why the next plan comes into force."""
    if state.lost:
        return f"goes on without {', '.join(state.lost)}"
    return "the same devices connect anew" if state.change is None else state.change.why


def _without(devices: tuple[str, ...], device: str) -> tuple[str, ...]:
    return tuple(d for d in devices if d != device)

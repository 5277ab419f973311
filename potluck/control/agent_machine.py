"""A device's state machine. Pure: a state and what happens give the next state and what is to be done.

What it holds, and as of which round, is decided here; the tensors are elsewhere. A device never leaves a state that
somebody may need before another one is whole, and says what it holds only when nothing changes it any more. It is
driven by `device/agent.py` with threads and tensors, and by `simulate/simulated_run.py` with neither.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

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
    Evaluated,
    GaveUp,
    Halt,
    HeldLongEnough,
    Keep,
    Leave,
    MakeCopy,
    Paused,
    Refused,
    Reported,
    Reports,
    ReportState,
    RunEvaluation,
    RunSurvey,
    Say,
    Seek,
    Survey,
    Surveyed,
    Tell,
    Train,
    TrainState,
    Works,
)
from potluck.control.open_rounds import OpenRounds
from potluck.plan.schedule.holders import stage_of
from potluck.plan.schedule.window import window
from potluck.types import Held, IdleReason, Value
from potluck.wire.messages import (
    Abandon,
    Begin,
    Committed,
    Echo,
    Evaluate,
    Holding,
    Interrupted,
    Measure,
    Meet,
    Prepare,
    Prepared,
    Probe,
    StandBy,
    Stop,
    Stored,
    Verdict,
)

AgentPhase = Literal["idle", "preparing", "training", "halted", "over"]
Busy = Literal["assembling", "training", "reporting", "evaluating", "measuring"]
AgentStep = tuple["AgentState", list[AgentOrder]]


class AgentState(Value, frozen=True, kw_only=True):
    """What a device holds and does."""

    me: str
    patient: bool = True  # holds what it has when the coordinator is gone
    phase: AgentPhase = "idle"
    force: Prepare | None = None  # the plan in force, or being prepared
    abandoned: int = -1  # the newest term that was given up
    live: Held | None = None  # the state that is trained
    copies: tuple[Held, ...] = ()
    busy: Busy | None = None
    begun: tuple[Begin | Evaluate | Survey, ...] = ()  # what is to be done next
    open_rounds: OpenRounds = OpenRounds()  # of which only this device's part is awaited
    in_hand: tuple[Begin, ...] = ()  # the orders of these rounds
    answer: int | None = None  # a term that was given up: to be answered when nothing is under way
    stop: Stop | None = None
    sought: bool = False  # the coordinator is looked for
    idle: IdleReason | None = None  # why the plan does without this device, as its owner was told
    works: bool = False  # for a parameter server: what was pushed last may have to be pushed again

    @property
    def term(self) -> int:
        """Of the plan in force."""
        return -1 if self.force is None else self.force.term

    @property
    def under_way(self) -> bool:
        """Whether something is being done, or half done until the next round begins."""
        return self.busy is not None or bool(self.in_hand)

    @property
    def inventory(self) -> tuple[Held, ...]:
        return (*(() if self.live is None else (self.live,)), *self.copies)


def agent_transition(state: AgentState, event: AgentEvent) -> AgentStep:
    """The next state, and what is to be done. Whatever does not belong to the phase or the term changes nothing."""
    if state.phase == "over":
        return state, []
    match event:
        case Prepare():
            return _prepare(state, event)
        case StandBy():
            return _stand_by(state, event)
        case Begin() | Evaluate():
            return _next(replace(state, begun=(*state.begun, event))) if state.phase == "training" else (state, [])
        case Echo() | Measure() | Meet() | Probe():
            return _next(replace(state, begun=(*state.begun, event)))
        case Verdict():
            return _verdict(state, event)
        case Abandon():
            return _abandon(state, event)
        case Stop():
            return _stop(state, event)
        case CoordinatorGone():
            return _coordinator_gone(state, event)
        case HeldLongEnough():
            words = "the coordinator did not come back"
            over = replace(state, phase="over", begun=())
            return (over, [Leave(reason=words, in_order=False)]) if state.sought else (state, [])
        case Copied():
            return _copied(state, event)
        case Works():
            return replace(state, works=True, sought=False), []
        case Reports():
            return _reports(state, event)
        case Applied(resting=False):
            return _applied(state, event)
        case _:
            return _done(state, event)


def _prepare(state: AgentState, event: Prepare) -> AgentStep:
    if state.force is not None and state.force.run != event.run:
        state = replace(state, live=None, copies=(), abandoned=-1, force=None)
    if event.term <= max(state.abandoned, state.term) or state.busy == "assembling":
        return state, []
    state = replace(state, phase="preparing", force=event, busy="assembling", begun=(), answer=None, sought=False)
    state = _without_rounds(state)
    return state, [Assemble(prepare=event)]


def _stand_by(state: AgentState, event: StandBy) -> AgentStep:
    """Its owner is told once, however often the coordinator says the same."""
    if state.idle is not None and event.reason.kind == state.idle.kind:
        return state, []
    text = (
        f"idle: the plan does without this device, because {event.reason.why}; "
        f"it stays ready and takes part when {event.reason.until}"
    )
    return replace(state, idle=event.reason), [Say(text=text)]


def _done(
    state: AgentState, event: Assembled | Applied | Paused | Reported | Refused | Evaluated | Surveyed | GaveUp
) -> AgentStep:
    """Nothing is under way any more; what was asked meanwhile is answered, or the next thing begun."""
    orders: list[AgentOrder] = []
    # A plan may have come meanwhile, which is put together next.
    coming = state.phase == "preparing" and not isinstance(event, Assembled | GaveUp)
    measured = state.busy == "measuring"
    state = replace(state, busy="assembling" if coming else None)
    match event:
        case Assembled():
            state, orders = _assembled(state, event)
        case Applied():
            state, orders = _applied(state, event)
        case Refused():  # rounds begun ahead must not follow one that was not committed
            state = _without_rounds(replace(state, phase="preparing" if coming else "halted", begun=()))
        case Surveyed():
            state = replace(state, phase="preparing" if coming else "idle", live=None, copies=())
            state = _without_rounds(state)
            orders = [TrainState(held=None), Keep(copies=())]
        case GaveUp():
            first = measured or state.phase in ("preparing", "training")
            state = _without_rounds(replace(state, phase="halted", begun=()))
            if first and event.why and state.stop is None:
                orders = [Tell(message=Interrupted(term=state.term, text=event.why, peer=event.peer))]
        case Evaluated() | Reported() | Paused():
            pass
    if state.stop is not None:
        return _over(state, state.stop, orders)
    if state.answer is not None:
        orders.append(Tell(message=Holding(term=state.answer, states=state.inventory)))
        return replace(state, answer=None), orders
    if state.busy is None:
        state, more = _next(state)
        orders += more
    return state, orders


def _assembled(state: AgentState, event: Assembled) -> AgentStep:
    force = state.force
    if force is None or event.term != force.term or state.phase != "preparing":
        return state, []
    said: AgentOrder = Tell(message=Prepared(term=event.term))
    if state.me not in force.plan.devices:  # it only had something to give
        return replace(state, phase="idle"), [said]
    live = Held(term=force.term, stage=stage_of(force.plan, state.me), round=force.round, live=True)
    # Copies of rounds that are to be trained again may come out with other last bits.
    copies = tuple(h for h in state.copies if h.round <= force.round)
    open_rounds = OpenRounds(devices=(state.me,), window=window(force.plan), first=force.round)
    state = replace(state, phase="training", live=live, copies=copies, open_rounds=open_rounds, idle=None)
    return state, [TrainState(held=live), Keep(copies=copies), said]


def _next(state: AgentState) -> AgentStep:
    if state.busy is not None or not state.begun:
        return state, []
    work, begun = state.begun[0], state.begun[1:]
    if isinstance(work, Evaluate):
        return replace(state, busy="evaluating", begun=begun), [RunEvaluation(evaluate=work)]
    if not isinstance(work, Begin):
        return replace(state, busy="measuring", begun=begun), [RunSurvey(survey=work)]
    if not state.open_rounds.may_begin(work.round):
        return state, []
    copies = tuple(h for h in state.copies if h.round >= work.point)
    keep: list[AgentOrder] = [Keep(copies=copies)] if copies != state.copies else []
    state = replace(
        state, busy="training", begun=begun, in_hand=(*state.in_hand, work), copies=copies,
        open_rounds=state.open_rounds.begin(work.round),
    )  # fmt: skip
    return state, [*keep, Train(begin=work)]


def _reports(state: AgentState, event: Reports) -> AgentStep:
    alone = isinstance(event.ready, Committed)
    ready = event.ready.ready if isinstance(event.ready, Committed) else event.ready
    if not alone and (state.phase != "training" or not state.open_rounds.awaited(ready.round)):
        return state, []
    return replace(state, open_rounds=state.open_rounds.report(state.me, ready.round)), [Tell(message=event.ready)]


def _verdict(state: AgentState, event: Verdict) -> AgentStep:
    """A committed round leaves room for another, although its step is taken later."""
    if state.phase != "training" or not state.open_rounds.may_commit(event.round):
        return state, []
    if event.kind == "retry":
        state = replace(state, open_rounds=state.open_rounds.again(event.round))
    if event.kind == "commit":
        state = replace(state, open_rounds=state.open_rounds.written(event.round))
    state, more = _next(state)
    return state, [Decide(verdict=event), *more]


def _without_rounds(state: AgentState) -> AgentState:
    return replace(state, open_rounds=state.open_rounds.abandon(), in_hand=())


def _applied(state: AgentState, event: Applied) -> AgentStep:
    """The state that is trained is of one more round, also if the term was given up meanwhile."""
    open_rounds = state.open_rounds.written(event.round)  # alone, nobody else said so before
    if (
        state.live is None
        or not state.in_hand
        or event.round != state.in_hand[0].round
        or event.round >= open_rounds.first
    ):
        return state, []
    begin, live = state.in_hand[0], replace(state.live, round=event.round + 1)
    state = replace(state, live=live, open_rounds=open_rounds, in_hand=state.in_hand[1:])
    orders: list[AgentOrder] = []
    if state.phase == "training" and begin.copy:
        orders.append(MakeCopy(held=replace(live, live=False)))
    if state.phase == "training" and begin.snapshot:
        state = replace(state, busy="reporting")
        orders.append(ReportState(round=event.round + 1))
    return state, orders


def _copied(state: AgentState, event: Copied) -> AgentStep:
    """A copy of the term in force is kept, and told; one of a term that is over came too late."""
    if event.held.term != state.term or state.phase != "training":
        return state, [Keep(copies=state.copies)]
    state = replace(state, copies=(*(h for h in state.copies if h != event.held), event.held))
    return state, [Tell(message=Stored(held=event.held, cost_s=event.cost_s))]


def _abandon(state: AgentState, event: Abandon) -> AgentStep:
    state = replace(
        state, phase="halted", abandoned=max(state.abandoned, event.term), begun=(), sought=False, answer=event.term
    )
    if state.force is not None and state.force.run != event.run:  # what is here is of another run
        state = replace(state, live=None, copies=(), force=None)
    if state.under_way:
        return _cancelled(state, event.reason)
    return replace(state, answer=None), [Tell(message=Holding(term=event.term, states=state.inventory))]


def _coordinator_gone(state: AgentState, event: CoordinatorGone) -> AgentStep:
    """Whoever holds nothing has nothing to wait for."""
    if not state.patient or not (state.inventory or state.works):
        words = "; nothing is held here: join again when it is back" if state.patient else ""
        return _stop(state, Stop(reason=f"the coordinator is gone ({event.why}){words}"))
    state = replace(state, phase="halted", begun=(), sought=True, answer=None)
    state, orders = _cancelled(state, event.why) if state.under_way else (state, [])
    return state, [*orders, Seek(why=event.why)]


def _cancelled(state: AgentState, why: str) -> AgentStep:
    """What is under way ends soon; what is half done has to be taken up for that."""
    halt: list[AgentOrder] = [] if state.busy is not None else [Halt()]
    return replace(state, busy=state.busy or "training"), [Cancel(reason=why), *halt]


def _stop(state: AgentState, event: Stop) -> AgentStep:
    state = replace(state, stop=event, begun=())
    if not state.under_way:
        return _over(state, event, [])
    return (state, []) if event.in_order else _cancelled(state, event.reason)


def _over(state: AgentState, stop: Stop, orders: list[AgentOrder]) -> AgentStep:
    # A coordinator that never asked for what is held cannot say that it is not needed.
    lost = state.sought and (bool(state.inventory) or state.works)
    leave = Leave(reason=stop.reason, in_order=stop.in_order and not lost, refused=stop.refused)
    return replace(state, phase="over"), [*orders, leave]

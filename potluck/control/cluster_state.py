"""What the coordinator's state machine knows, and what follows from that about who holds what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from potluck.control.cluster_events import WantedChange
from potluck.control.open_rounds import OpenRounds
from potluck.control.setbacks import Setbacks, UnreachedPair
from potluck.plan.schedule.window import window
from potluck.recover.placement import recovery_point
from potluck.types import COORDINATOR, Held, Plan, Value

ClusterPhase = Literal["preparing", "training", "asking", "seeking", "planning", "ended"]
WHOLE_MODEL = -1  # stage number of what the coordinator holds


class Blueprint(Protocol):
    """What of the model decides who needs what."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Tensor → bytes."""

    def names(self, plan: Plan, stage: int) -> frozenset[str]:
        """Tensors of a stage."""


class ClusterState(Value, frozen=True, kw_only=True):
    """Everything the coordinator knows about who holds what and how far training is."""

    rounds: int  # of the whole run
    plan: Plan
    term: int
    here: tuple[str, ...]
    open_rounds: OpenRounds  # of the term in force; those before were committed by it, or are where it started
    saved: int  # rounds of the whole model that the coordinator has
    phase: ClusterPhase = "planning"
    plans: dict[int, Plan] = {}  # term → plan, of states that somebody may hold
    needed: tuple[str, ...] = ()  # whom this term cannot do without
    waiting: tuple[str, ...] = ()  # whose word is awaited
    holdings: dict[str, tuple[Held, ...]] = {}
    lost: dict[str, str] = {}  # since the term was given up
    silent: tuple[str, ...] = ()  # who of them just was not heard any more
    why: str = ""  # the term was given up
    change: WantedChange | None = None  # the term was given up for this
    between: UnreachedPair | None = None  # the term was given up as these do not reach each other
    apart: tuple[UnreachedPair, ...] = ()  # devices that did not reach each other time and again: never both in a plan
    leaving: tuple[str, ...] = ()  # whom the next term lets go
    asked: int = 0  # plans that were ordered
    setbacks: Setbacks = Setbacks()

    @property
    def committed(self) -> int:
        return self.open_rounds.first


def none_open(plan: Plan, first: int) -> OpenRounds:
    return OpenRounds(devices=plan.devices, window=window(plan), first=first)


def newest(state: ClusterState) -> int:
    """The newest round from which training can go on.

    After the very last one nothing is left to train, so nobody would report it, unless everybody has.
    """
    over = state.committed == state.rounds and state.saved != state.committed
    return state.committed - 1 if over else state.committed


def held(state: ClusterState, blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    """Device → blocks that it has as of the round from which training will go on."""
    everywhere = {**state.holdings, COORDINATOR: (whole(state),)}
    known = names_of(state.plans, blueprint)
    point = recovery_point(everywhere, known, frozenset(blueprint.sizes), newest(state))
    found: dict[str, tuple[int, ...]] = {}
    for device, states in state.holdings.items():
        stages = [state.plans[h.term].stages[h.stage] for h in states if h.round == point]
        found[device] = tuple(sorted({block for stage in stages for block in range(*stage.blocks)}))
    return found


def names_of(plans: Mapping[int, Plan], blueprint: Blueprint) -> dict[tuple[int, int], frozenset[str]]:
    """The tensors of every state that somebody may hold."""
    found = {(0, WHOLE_MODEL): frozenset(blueprint.sizes)}
    for term, plan in plans.items():
        found |= {(term, stage): blueprint.names(plan, stage) for stage in range(len(plan.stages))}
    return found


def whole(state: ClusterState) -> Held:
    return Held(term=0, stage=WHOLE_MODEL, round=state.saved)

"""What the coordinator's state machine hears and says: two closed unions."""

from __future__ import annotations

from typing import Literal

from potluck.types import Held, Move, Plan, Value

ChangeKind = Literal["left", "joined", "slow", "plan", "coordinator"]

# --- what happens ---


class Joined(Value, frozen=True, kw_only=True, tag="joined"):
    """A device is here and can be reached."""

    device: str


class Lost(Value, frozen=True, kw_only=True, tag="lost"):
    """A device is gone, and nothing it may still say counts."""

    device: str
    why: str
    silent: bool = False  # nothing was heard from it, rather than that its connection ended


class IsPrepared(Value, frozen=True, kw_only=True, tag="is_prepared"):
    """A device holds what it needs for a term."""

    device: str
    term: int


class Began(Value, frozen=True, kw_only=True, tag="began"):
    """The devices were told to train a round."""

    round: int


class IsReady(Value, frozen=True, kw_only=True, tag="is_ready"):
    """A device reports its gradients of a round."""

    device: str
    round: int


class Again(Value, frozen=True, kw_only=True, tag="again"):
    """The round in hand is tried once more: what was reported of it counts no longer."""

    round: int


class Written(Value, frozen=True, kw_only=True, tag="written"):
    """The ledger has a round, on disk."""

    round: int


class Saved(Value, frozen=True, kw_only=True, tag="saved"):
    """The coordinator has the whole model as of so many rounds, on disk."""

    round: int


class Broken(Value, frozen=True, kw_only=True, tag="broken"):
    """Devices of a term do not reach each other, or somebody waited too long."""

    term: int
    why: str
    between: tuple[str, str] | None = None  # who did not hear whom, if that is known


class Holds(Value, frozen=True, kw_only=True, tag="holds"):
    """What a device holds, as it gave a term up."""

    device: str
    term: int
    states: tuple[Held, ...]


class Stalled(Value, frozen=True, kw_only=True, tag="stalled"):
    """Whoever is awaited did not answer in time."""


class NoCause(Value, frozen=True, kw_only=True, tag="no_cause"):
    """Nobody turned out to be lost, although devices did not reach each other."""


class WantedChange(Value, frozen=True, kw_only=True, tag="wanted"):
    """The plan is to change between two rounds: nobody is lost."""

    kind: ChangeKind
    why: str
    devices: tuple[str, ...] = ()
    plan: Plan | None = None


class Planned(Value, frozen=True, kw_only=True, tag="planned"):
    """The plan that was ordered, and the number of its term; or why there is none."""

    number: int
    term: int = 0
    plan: Plan | None = None
    why: str = ""


Event = (
    Joined | Lost | IsPrepared | Began | IsReady | Again | Written | Saved | Broken | Holds | Stalled | NoCause
    | WantedChange | Planned
)  # fmt: skip


# --- what is to be done ---


class GiveUpTerm(Value, frozen=True, kw_only=True, tag="abandon"):
    """Tell these devices to give the term up, keep what they hold, and say what that is."""

    term: int
    devices: tuple[str, ...]
    reason: str


class SeekCause(Value, frozen=True, kw_only=True, tag="seek_cause"):
    """Wait a moment for somebody to turn out to be lost."""


class Drop(Value, frozen=True, kw_only=True, tag="drop"):
    """Do without a device that is connected and does not answer."""

    device: str


class ComputePlan(Value, frozen=True, kw_only=True, tag="compute_plan"):
    """Find the plan to go on with: without some devices, or the one that was wished for."""

    number: int
    force: Plan
    without: tuple[str, ...]
    held: dict[str, tuple[int, ...]]  # device → blocks that it has as of where training will go on
    wish: Plan | None = None
    why: str = ""
    apart: tuple[tuple[str, str], ...] = ()  # devices that do not reach each other: one of them may be in the plan


class PrepareTerm(Value, frozen=True, kw_only=True, tag="prepare"):
    """Write the term down, then let these devices put together what they need for it."""

    term: int
    round: int
    plan: Plan
    moves: tuple[Move, ...]
    devices: tuple[str, ...]  # of the plan, and those that only give
    reason: str


class Note(Value, frozen=True, kw_only=True, tag="note"):
    """What happened and what follows from it, for the records."""

    kind: Literal["lost", "link"] | ChangeKind
    devices: tuple[str, ...]
    what: str
    reason: str
    round: int
    replayed: int
    moves: tuple[Move, ...]


class Adopt(Value, frozen=True, kw_only=True, tag="adopt"):
    """Everybody is prepared: the term is in force. These devices are not needed any more."""

    term: int
    release: tuple[str, ...] = ()


class Settle(Value, frozen=True, kw_only=True, tag="settle"):
    """Everybody has reported: judge the round, and write it to the ledger."""

    round: int


class Commit(Value, frozen=True, kw_only=True, tag="commit"):
    """The ledger has the round: tell everybody."""

    round: int


class Idle(Value, frozen=True, kw_only=True, tag="idle"):
    """A device is gone that had nothing to do."""

    device: str
    why: str


class StopRun(Value, frozen=True, kw_only=True, tag="stop_run"):
    """There is no way on."""

    why: str
    poison: bool = False  # the samples of the round in hand may be the cause


Order = GiveUpTerm | SeekCause | Drop | ComputePlan | PrepareTerm | Note | Adopt | Settle | Commit | Idle | StopRun

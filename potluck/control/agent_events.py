"""What a device's state machine hears, beside what the coordinator says, and what it says: two closed unions."""

from __future__ import annotations

from potluck.types import Held, Value
from potluck.wire.messages import (
    Abandon,
    Begin,
    Committed,
    Echo,
    Evaluate,
    FromAgent,
    Measure,
    Meet,
    Prepare,
    Probe,
    Ready,
    StandBy,
    Stop,
    Verdict,
)

Survey = Echo | Measure | Meet | Probe


# --- what happens, beside what the coordinator says ---


class Assembled(Value, frozen=True, kw_only=True, tag="assembled"):
    """The state for a term is whole."""

    term: int


class Reports(Value, frozen=True, kw_only=True, tag="reports"):
    """The gradients of a round are complete, or a device that decides alone has committed it."""

    ready: Ready | Committed


class Applied(Value, frozen=True, kw_only=True, tag="applied"):
    """A round was committed here."""

    round: int
    resting: bool = True  # nothing is under way any more; else the next round is


class Paused(Value, frozen=True, kw_only=True, tag="paused"):
    """A round is trained as far as it can be before the next one begins."""


class Reported(Value, frozen=True, kw_only=True, tag="reported"):
    """The coordinator was sent the state, for its checkpoint."""


class Refused(Value, frozen=True, kw_only=True, tag="refused"):
    """A round was not committed and is not tried again."""

    round: int


class Evaluated(Value, frozen=True, kw_only=True, tag="evaluated"):
    """An evaluation is done."""


class Surveyed(Value, frozen=True, kw_only=True, tag="surveyed"):
    """A measurement is done; it needed the room of everything that was held."""


class GaveUp(Value, frozen=True, kw_only=True, tag="gave_up"):
    """What was under way could not go on: a peer did not answer (why), or it was cancelled (no why)."""

    why: str = ""
    peer: str | None = None


class Copied(Value, frozen=True, kw_only=True, tag="copied"):
    """A copy of a state is whole and here."""

    held: Held
    cost_s: float = 0.0  # of training that copying has taken here since the copy began; 0: not known


class Works(Value, frozen=True, kw_only=True, tag="works"):
    """A parameter server has let this device in."""


class CoordinatorGone(Value, frozen=True, kw_only=True, tag="coordinator_gone"):
    """The connection to the coordinator is over."""

    why: str


class HeldLongEnough(Value, frozen=True, kw_only=True, tag="held_long_enough"):
    """The coordinator did not come back in the time that was granted."""


AgentEvent = (
    Prepare | StandBy | Begin | Evaluate | Verdict | Abandon | Stop | Survey | Assembled | Reports | Applied | Paused
    | Reported | Refused | Evaluated | Surveyed | GaveUp | Copied | Works | CoordinatorGone | HeldLongEnough
)  # fmt: skip


# --- what is to be done ---


class Assemble(Value, frozen=True, kw_only=True, tag="assemble"):
    """Put the state for a term together, and give others what they need of what is here."""

    prepare: Prepare


class Train(Value, frozen=True, kw_only=True, tag="train"):
    """Train a round."""

    begin: Begin


class RunEvaluation(Value, frozen=True, kw_only=True, tag="run_evaluation"):
    """Run an evaluation."""

    evaluate: Evaluate


class RunSurvey(Value, frozen=True, kw_only=True, tag="run_survey"):
    """Measure something."""

    survey: Survey


class Tell(Value, frozen=True, kw_only=True, tag="tell"):
    """Tell the coordinator."""

    message: FromAgent


class Say(Value, frozen=True, kw_only=True, tag="say"):
    """Tell the owner of this device."""

    text: str


class Decide(Value, frozen=True, kw_only=True, tag="decide"):
    """Do with the round in hand what the coordinator says."""

    verdict: Verdict


class Halt(Value, frozen=True, kw_only=True, tag="halt"):
    """Give up the rounds that are half done."""


class Cancel(Value, frozen=True, kw_only=True, tag="cancel"):
    """End whatever is awaited from others."""

    reason: str


class Keep(Value, frozen=True, kw_only=True, tag="keep"):
    """Of copies, keep these and no others."""

    copies: tuple[Held, ...]


class TrainState(Value, frozen=True, kw_only=True, tag="train_state"):
    """What was put together is the state that is trained from now on; or none is."""

    held: Held | None


class MakeCopy(Value, frozen=True, kw_only=True, tag="make_copy"):
    """Copy the state that is trained; give one to the guardian, take those of wards."""

    held: Held


class ReportState(Value, frozen=True, kw_only=True, tag="report_state"):
    """Send the coordinator the state, for its checkpoint."""

    round: int


class Seek(Value, frozen=True, kw_only=True, tag="seek"):
    """Look for the coordinator, and hold what is here meanwhile."""

    why: str


class Leave(Value, frozen=True, kw_only=True, tag="leave"):
    """End this process."""

    reason: str
    in_order: bool
    refused: bool = False  # what its owner gave it does not fit


AgentOrder = (
    Assemble | Train | RunEvaluation | RunSurvey | Tell | Say | Decide | Cancel | Halt | Keep | TrainState | MakeCopy
    | ReportState | Seek | Leave
)  # fmt: skip

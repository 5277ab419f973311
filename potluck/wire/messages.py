"""Everything coordinator and agents say to each other on the control channel: two closed unions."""

from __future__ import annotations

import msgspec

from potluck.job.optimizers import Optimizer
from potluck.types import CopyLine, DeviceProfile, DeviceSpec, Held, IdleReason, Move, Pace, Plan, Timing

PROTOCOL = 12  # one more whenever a message changes: both sides must speak the same
PROOF_VARIABLE = "_POTLUCK_PROOF"  # of the environment of a device that the coordinator starts itself; not a setting


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message."""


# --- from an agent ---


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First words: who I am."""

    protocol: int
    version: str
    torch_version: str
    device: DeviceSpec
    host: str = ""  # the machine, in words: a profile holds for it alone
    machine: str = ""  # it and no other, whatever its name; "" where that cannot be told
    insists: bool = True  # no other name will do: it was chosen, or I hold something by it
    proof: str = ""  # the word a device was started with, so that no other takes its place
    holds: str = ""  # the run of which I hold something, as I come back
    chaos: bool = False  # my owner agrees that I am told to misbehave
    incarnation: int = 0  # who I was for the parameter server of the run that I hold


class Echo(Message, frozen=True, kw_only=True, tag="echo"):
    """Goes there and back, to see how long that takes."""

    number: int


class MeasureProgress(Message, frozen=True, kw_only=True, tag="measure_progress"):
    """How far I am with measuring."""

    done: int
    total: int


class Rehearsed(msgspec.Struct, frozen=True, array_like=True):
    """How much a device grew while it trained some blocks."""

    blocks: tuple[int, int]
    grown_bytes: int
    micro_batches: int  # that were trained


class Measured(Message, frozen=True, kw_only=True, tag="measured"):
    """What the model costs me, block by block; or one cell of it, if only that was asked for."""

    profile: DeviceProfile | None = None
    again: Timing | None = None
    rehearsed: tuple[Rehearsed, ...] = ()
    problem: str = ""


class Probed(Message, frozen=True, kw_only=True, tag="probed"):
    """What the way from me to a peer carries."""

    peer: str
    bandwidth_bytes_s: float
    latency_s: float
    both_ratio: float  # how much longer it takes while as much comes the other way


class Linked(Message, frozen=True, kw_only=True, tag="linked"):
    """Where peers reach me with tensors."""

    address: str


class Prepared(Message, frozen=True, kw_only=True, tag="prepared"):
    """I hold my stage's state and can start."""

    term: int


class LossPart(msgspec.Struct, frozen=True, array_like=True):
    """The loss of some rows of a micro-batch; their weight is their part of the round's loss weight."""

    micro_batch: int
    row: int
    loss: float
    weight: float


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """My gradients of this round are complete, and kept until I hear the verdict."""

    round: int
    losses: tuple[LossPart, ...] = ()
    squared_norms: dict[str, float] = {}  # of parameters I answer for, after the group sum
    finite: bool = True
    trouble: str = ""  # where non-finite values were first seen here, when looking was asked for
    spent_s: dict[
        str, float
    ] = {}  # by kind of action since the last report; order, verdict, update: of the round before


class Committed(Message, frozen=True, kw_only=True, tag="committed"):
    """I committed this round myself (a plan of one device)."""

    ready: Ready
    loss: float
    gradient_norm: float


class Interrupted(Message, frozen=True, kw_only=True, tag="interrupted"):
    """A peer did not answer: I gave this term's open round up and wait for the next plan."""

    term: int
    text: str
    peer: str | None = None  # which one, if that is known


class Holding(Message, frozen=True, kw_only=True, tag="holding"):
    """The term is over for me, and this is what I hold."""

    term: int  # the one that was given up
    states: tuple[Held, ...]


class Stored(Message, frozen=True, kw_only=True, tag="stored"):
    """I keep a copy of this state."""

    held: Held
    cost_s: float = 0.0  # of training here that this copy has taken so far; 0: not known


class Loaded(Message, frozen=True, kw_only=True, tag="loaded"):
    """I can train the whole model on my own data; or why I cannot."""

    samples: int = 0
    step_s: float = 0.0  # of one step, measured
    problem: str = ""
    classes: tuple[str, ...] = ()  # what labels 0, 1, … stand for, where my data says so


class Met(Message, frozen=True, kw_only=True, tag="met"):
    """Where the parameter server reaches this incarnation of me."""

    incarnation: int
    address: str


class Unreachable(Message, frozen=True, kw_only=True, tag="unreachable"):
    """The parameter server does not answer me, though the coordinator does: let me join again."""

    text: str


class Leaving(Message, frozen=True, kw_only=True, tag="leaving"):
    """I have to go: take over what I hold, and tell me when you have."""


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """I cannot go on."""

    text: str
    exit_code: int = 3


# --- from the coordinator ---


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """You are in, by this name; open your link."""

    name: str
    carrier: str
    bandwidth_bytes_s: float | None = None
    timeout_s: float = 120.0


class Prepare(Message, frozen=True, kw_only=True, tag="prepare"):
    """Get ready for a plan: fetch the program, adopt the term, put your state together."""

    run: str  # of which the states are
    term: int
    round: int  # the first to be trained: the state is of so many committed rounds
    moves: tuple[Move, ...]  # what you give and get, before you are prepared
    plan: Plan
    program: str  # digest
    peers: dict[str, str]
    optimizer: Optimizer
    seed: int
    clip_norm: float | None
    own_commit: bool  # a one-device plan commits by itself
    window_bytes: int  # room that links between devices need for this plan
    guardian: str | None = None  # who keeps a copy of your state
    copy_line: CopyLine | None = None  # what carries it there, if that is known
    wards: tuple[str, ...] = ()  # whose copies you keep


class Measure(Message, frozen=True, kw_only=True, tag="measure"):
    """Run the blocks of a program one by one and tell me what they cost."""

    program: str  # digest
    samples: str  # digest of a few rows of every feed, as safetensors
    rows: tuple[int, ...]  # most important first
    sizes: tuple[float, ...]  # of the blocks: the largest are measured first
    optimizer: Optimizer
    budget_s: float
    again: int | None = None  # only this block, at the first row count
    rehearse: tuple[tuple[int, int], ...] = ()  # runs of blocks to train a little, to see what memory they really take


class Meet(Message, frozen=True, kw_only=True, tag="meet"):
    """Connect to these peers, to measure the links."""

    term: int
    peers: dict[str, str]


class Probe(Message, frozen=True, kw_only=True, tag="probe"):
    """Measure the link to a peer, which does the same at the same time."""

    peer: str
    lead: bool  # one of the two begins
    budget_s: float


class StandBy(Message, frozen=True, kw_only=True, tag="stand_by"):
    """The plan does without you: stay ready, and tell your owner why."""

    reason: IdleReason


class Begin(Message, frozen=True, kw_only=True, tag="begin"):
    """Run a round: its feeds are on their way."""

    round: int
    sizes: tuple[int, ...]  # rows of each micro-batch
    total_weight: float
    lr_scale: float
    snapshot: bool = False  # after commit, send me your state
    copy: bool = False  # after commit, keep a copy of your state, and give one to your guardian
    point: int = 0  # no copy from before so many rounds is needed any more
    follows: bool = False  # the next round begins before this one is settled: go on without waiting


class Abandon(Message, frozen=True, kw_only=True, tag="abandon"):
    """Somebody is lost: give up the open round, keep your state, and tell me what you hold."""

    run: str
    term: int
    reason: str


class Verdict(Message, frozen=True, kw_only=True, tag="verdict"):
    """What becomes of a round everybody is ready for."""

    round: int
    kind: str  # "commit", "retry" or "stop"
    lr_scale: float = 1.0
    clip: float = 1.0  # factor on every gradient


class Evaluate(Message, frozen=True, kw_only=True, tag="evaluate"):
    """Run micro-batches forward with the evaluation program; outputs go to me."""

    number: int
    sizes: tuple[int, ...]


class FeedSpec(msgspec.Struct, frozen=True, array_like=True):
    """What a model is fed with: shape and type of one sample."""

    shape: tuple[int, ...]
    dtype: str


class Load(Message, frozen=True, kw_only=True, tag="load"):
    """Get ready to train the whole model on data of your own."""

    run: str
    program: str  # digest
    state: str  # digest of the weights to begin with, as safetensors
    optimizer: Optimizer
    batch_size: int
    seed: int
    clip_norm: float | None
    feeds: dict[str, FeedSpec]
    data: str  # name of the data set that you own,
    share: str = ""  # or the digest of samples for you, as safetensors


class Work(Message, frozen=True, kw_only=True, tag="work"):
    """Train, and push what you learn to the parameter server: the first weights are on their way."""

    run: str
    incarnation: int
    address: str  # of the server's link
    term: int
    window_bytes: int
    waits: bool  # stand still from a push until it is answered
    pace: Pace
    seen: int = 0  # your newest push that counts, if you were here before,
    durable_up_to: int = 0  # and the newest that a restart does not lose


class Repace(Message, frozen=True, kw_only=True, tag="repace"):
    """Push at another pace from now on."""

    pace: Pace


class Durable(Message, frozen=True, kw_only=True, tag="durable"):
    """Your pushes up to this one are on disk: a restart of the server does not lose them."""

    incarnation: int
    up_to: int


class Misbehave(Message, frozen=True, kw_only=True, tag="misbehave"):
    """For a rehearsal: do this to yourself, if your owner agreed."""

    do: str
    seconds: float
    factor: float


FINISHED = "finished"
SAVED = "saved and stopped: it can go on later"
HANDED_OVER = "the others have taken over"


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """It is over."""

    reason: str
    refused: bool = False  # what the device's owner gave it does not fit

    @property
    def in_order(self) -> bool:
        """Whether nothing went wrong."""
        return self.reason in (FINISHED, SAVED, HANDED_OVER)


FromAgent = (
    Echo | MeasureProgress | Measured | Probed | Hello | Linked | Prepared | Ready | Committed | Interrupted | Holding
    | Stored | Loaded | Met | Unreachable | Leaving | Failed
)  # fmt: skip
FromCoordinator = (
    Echo | Measure | Meet | Probe | Welcome | Prepare | StandBy | Begin | Verdict | Evaluate | Abandon | Load | Work
    | Repace | Durable | Misbehave | Stop
)  # fmt: skip

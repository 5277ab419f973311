"""The vocabulary as values: frozen, validated on construction, with a JSON form. Read this file first.

Ranges are half-open. Times are float seconds and sizes int bytes, with the unit in the name.
"""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from potluck.errors import InputError, PlanError

COORDINATOR = "coordinator"
DEFAULT_SCHEDULE = "1f1b"
STEADY_SCHEDULE = "steady"
RAW = "raw"  # the codec that changes nothing
LONGEST_NAME = 64  # of a device: it is shown in lines and becomes part of file names

ITEM_BYTES = {
    "complex128": 16, "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}  # fmt: skip

DeviceKind = Literal["cpu", "cuda", "mps"]
Sharing = Literal["turns", "samples"]
FIGURE = re.compile(r"\d+(?:\.\d+)?%")  # in a reason
Medium = Literal["full", "half", "shared"]  # both directions at once · one at a time · all links share one channel


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every value: immutable, keyword-only, unknown keys refused."""


class DeviceSpec(Value, frozen=True, kw_only=True):
    """One machine, or one accelerator of it, that computes."""

    name: str
    kind: DeviceKind = "cpu"
    memory_bytes: int = 0  # 0: not limited
    threads: int = 1
    speed: float = 1.0  # 0.5 computes at half the speed of what was measured; above 1 only on paper

    def __post_init__(self) -> None:
        if self.name == COORDINATOR:
            raise InputError(f"device name {self.name!r}: it is taken by the coordinator; give another one")
        wrong = not self.name or any(not "!" <= c <= "~" or c in ",/" for c in self.name)
        if wrong or len(self.name) > LONGEST_NAME:
            shown = self.name if len(self.name) <= LONGEST_NAME else f"{self.name[:LONGEST_NAME]}…"
            raise InputError(
                f"device name {shown!a}: give at most {LONGEST_NAME} ASCII letters, digits or signs "
                "without spaces, commas or slashes"
            )
        if self.memory_bytes < 0:
            raise InputError(f"device {self.name}: memory_bytes {self.memory_bytes}; give a size, or 0 for no limit")
        if self.threads < 1:
            raise InputError(f"device {self.name}: threads {self.threads}; give at least 1")
        if not 0 < self.speed < math.inf:
            raise InputError(f"device {self.name}: speed {self.speed}; give a number above 0")


class LinkSpec(Value, frozen=True, kw_only=True):
    """A link that differs from the fleet's others, the same in both directions."""

    between: tuple[str, str]
    bandwidth_bytes_s: float | None = None  # None: not limited
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        name = " – ".join(self.between)
        if self.between[0] == self.between[1]:
            raise InputError(f"link {name}: leads from a device to itself; name two devices")
        if self.bandwidth_bytes_s is not None and not self.bandwidth_bytes_s > 0:
            raise InputError(f"link {name}: bandwidth {self.bandwidth_bytes_s}; give a positive rate")
        if not 0 <= self.latency_s < math.inf:
            raise InputError(f"link {name}: latency {self.latency_s}; give a duration, or 0")


class Fleet(Value, frozen=True, kw_only=True):
    """The devices, and how fast the links between them are."""

    devices: tuple[DeviceSpec, ...]
    bandwidth_bytes_s: float | None = None  # of every link; None: not limited
    latency_s: float = 0.0  # of every link
    medium: Medium = "full"
    links: tuple[LinkSpec, ...] = ()  # those that differ

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names:
            raise InputError("fleet: no devices; give at least one")
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise InputError(f"fleet: device {twice[0]!r} appears twice; give each its own name")
        if self.bandwidth_bytes_s is not None and self.bandwidth_bytes_s <= 0:
            raise InputError(f"fleet: bandwidth {self.bandwidth_bytes_s}; give a positive rate, or none for no limit")
        if not 0 <= self.latency_s < math.inf:
            raise InputError(f"fleet: latency {self.latency_s}; give a duration, or 0")
        self._check_links({*names, COORDINATOR})

    def _check_links(self, names: set[str]) -> None:
        seen = set()
        for link in self.links:
            nowhere = [n for n in link.between if n not in names]
            if nowhere:
                raise InputError(f"fleet: a link leads to {nowhere[0]!r}, which is no device; name two that are")
            if frozenset(link.between) in seen:
                raise InputError(f"fleet: the link {' – '.join(link.between)} appears twice; remove one")
            seen.add(frozenset(link.between))

    def link(self, a: str, b: str) -> LinkSpec:
        """The link between two devices, or between one and the coordinator."""
        for link in self.links:
            if set(link.between) == {a, b}:
                return link
        return LinkSpec(between=(a, b), bandwidth_bytes_s=self.bandwidth_bytes_s, latency_s=self.latency_s)


class Member(Value, frozen=True, kw_only=True):
    """A device in a group, with its share."""

    device: str
    share: int  # by samples: rows of every micro-batch; by turns: micro-batches of every round
    sums: int = 1  # how much of the group's gradients it adds up, against the others; 0: none


class Stage(Value, frozen=True, kw_only=True):
    """A run of blocks, and the group that holds it."""

    blocks: tuple[int, int]
    group: tuple[Member, ...]
    sharing: Sharing = "turns"
    depth: int | None = None  # forwards before the first backward (K); None: stages from here to the end
    recompute: bool = False  # keep only what was received, and run forward again before backward
    late_weights: int = 0  # micro-batches whose weight gradients may wait until there is nothing better to do
    codec: str = RAW  # of what leaves this stage for later ones, and of the gradients that come back to it


class Plan(Value, frozen=True, kw_only=True):
    """Who runs what. Whether it fits a model and a fleet is `plan/validate.py`'s question."""

    micro_batch_size: int
    micro_batches: int
    stages: tuple[Stage, ...]
    schedule: str = DEFAULT_SCHEDULE  # a file in `plan/schedule/`, or what an extension adds
    version: Literal[1] = 1

    def __post_init__(self) -> None:
        if self.micro_batch_size < 1:
            raise PlanError(f"plan: micro_batch_size {self.micro_batch_size}; give at least 1")
        if self.micro_batches < 1:
            raise PlanError(f"plan: micro_batches {self.micro_batches}; give at least 1")
        if not self.stages:
            raise PlanError("plan: stages is empty; give at least one stage")

    @property
    def batch_size(self) -> int:
        """Samples of a full round."""
        return self.micro_batch_size * self.micro_batches

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device of the plan, stage by stage, in group order."""
        return tuple(m.device for s in self.stages for m in s.group)

    def depth(self, stage: int) -> int:
        """Warm-up depth K of a stage; by default the number of stages from it to the end."""
        given = self.stages[stage].depth
        return len(self.stages) - stage if given is None else given


class Held(Value, frozen=True, kw_only=True):
    """A state that somebody holds: of a stage of a term's plan, after so many committed rounds."""

    term: int
    stage: int  # -1: the whole model, which only the coordinator holds
    round: int
    live: bool = False  # what training changes, rather than a copy that stays as it is


class Move(Value, frozen=True, kw_only=True):
    """Some tensors of a state go from one device to another; or, where both are the same, stay where they are."""

    source: str
    target: str
    held: Held
    names: tuple[str, ...]  # parameters, with what the optimizer keeps of them, and buffers


class Block(Value, frozen=True, kw_only=True):
    """The smallest piece of a program that can be cut off. Sizes of what it *owns* (a tied weight has one owner)."""

    index: int
    label: str  # the module it comes from, for people
    parameters: tuple[str, ...]  # owned, in program order
    weight_bytes: int
    trainable_bytes: int  # of weight_bytes; the rest is frozen
    buffer_bytes: int
    stash_bytes: int  # kept for the backward pass, per sample
    coupled: bool = False  # one sample's result depends on others: never shared by samples
    exclusive: bool = False  # it updates a buffer in a way that cannot be folded: never shared at all


class Crossing(Value, frozen=True, kw_only=True):
    """A tensor made in one block and used in later ones."""

    value: int
    producer: int
    consumers: tuple[int, ...]
    sample_bytes: int  # per sample, in memory
    gradient: bool  # a gradient comes back
    dtype: str = "uint8"  # bytes that no codec touches, unless more is known
    shape: tuple[tuple[int, int], ...] = ()  # of each axis, places that are always there and places per sample

    def shape_of(self, rows: int) -> tuple[int, ...]:
        """Its shape when it holds that many samples."""
        return tuple(fixed + rows * each for fixed, each in self.shape) or (rows * self.sample_bytes,)


class Feed(Value, frozen=True, kw_only=True):
    """An input or label, delivered by the coordinator straight to the blocks that use it."""

    name: str
    consumers: tuple[int, ...]
    sample_bytes: int


class ModelFacts(Value, frozen=True, kw_only=True):
    """What planning needs to know of a program, without torch."""

    digest: str
    blocks: tuple[Block, ...]
    crossings: tuple[Crossing, ...]
    feeds: tuple[Feed, ...]
    tied: tuple[tuple[str, tuple[int, ...]], ...] = ()  # parameter → the blocks that use it, owner first
    optimizer_slots: int = 0  # state tensors per trainable parameter: SGD 0 or 1, Adam 2


class Timing(Value, frozen=True, kw_only=True):
    """What one block costs a device, for micro-batches of so many rows."""

    rows: int
    forward_s: float
    backward_s: float
    kept_bytes: int  # alive between forward and backward, what was received included; what is sent counts there
    working_bytes: int  # on top of that, at the worst moment of either
    measured: bool = True  # else filled in from neighbouring cells


class BlockProfile(Value, frozen=True, kw_only=True):
    """One block on one device."""

    timings: tuple[Timing, ...]  # by rows, ascending
    update_s: float = 0.0  # its part of the optimizer step
    resident: float = 1.0  # bytes a process takes for each byte its tensors need: there are holes between them
    late_back: float = 1.0  # what is left of the backward where weight gradients wait, in parts of it,
    late_weights: float = 0.0  # and what they take then
    late_kept: float = 1.0  # what has to be kept for them, in parts of what lies between forward and backward


class DeviceProfile(Value, frozen=True, kw_only=True):
    """A model on one device, block by block."""

    device: DeviceSpec
    blocks: tuple[BlockProfile, ...]
    torch_version: str = ""
    message_s: float = 0.0  # compute time lost to a message sent or received, whatever its size
    copy_bytes_s: float | None = None  # how fast tensors are packed and unpacked; None: takes no time
    idle_bytes: int = 0  # resident memory of an agent that holds nothing
    code_bytes: int = 0  # what kernels take once they have run: their code, and scratch space that they keep
    rehearsed: int = 0  # micro-batches that were trained to find out this and `resident`; 0: not all was found out
    call_s: float = 0.0  # of a forward and a backward of any stage, beside its blocks
    host: str = ""  # the machine it was measured on, in words


TRUNK_ARROW = " → "  # in the name of a line that links share


class LinkProfile(Value, frozen=True, kw_only=True):
    """What one direction of a link carries."""

    source: str
    target: str
    bandwidth_bytes_s: float | None = None  # None: not limited
    latency_s: float = 0.0
    measured: bool = True
    trunk: str = ""  # links that name the same line share what it carries, as those from one room to another do


class Profile(Value, frozen=True, kw_only=True):
    """All that planning knows of devices and links, for one program."""

    program: str  # digest
    devices: tuple[DeviceProfile, ...]
    links: tuple[LinkProfile, ...] = ()  # a direction that is missing carries everything at once
    medium: Medium = "full"
    commit_s: float = 0.0  # from the last *ready* until every device has begun its update

    def device(self, name: str) -> DeviceProfile:
        for found in self.devices:
            if found.device.name == name:
                return found
        raise InputError(f"profile: no device {name!r}; it has {', '.join(d.device.name for d in self.devices)}")


class CopyLine(Value, frozen=True):
    """The way from a device to its guardian."""

    bytes_s: float
    shared: bool  # with others: one channel, one direction at a time, or a line between rooms
    part: float  # of it, that copies take at least


class IdleReason(Value, frozen=True):
    """Why the plan in force does without a device that is here, and what would change that: two clauses."""

    why: str
    until: str  # "takes part when …"

    @property
    def kind(self) -> str:
        """The reason without its figures: those change with every search and are no news."""
        return f"{FIGURE.sub('%', self.why)}; {self.until}"


class Pace(Value, frozen=True):
    """When a worker pushes next: so many steps, or so much time, after its last push, whichever is first."""

    reason: str
    steps: int | None = None
    seconds: float | None = None
    number: int = 0  # grows with every decision: paces travel on two ways and may overtake each other

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise InputError("a pace: neither steps nor seconds; give one of them")


class RoundRecord(Value, frozen=True, kw_only=True, tag="round"):
    """One committed round."""

    round: int
    epoch: int
    term: int
    samples: int
    loss: float
    learning_rate: float
    seconds: float
    gradient_norm: float | None = None
    spent_s: dict[str, dict[str, float]] = {}  # device → what it did or waited for → seconds

"""The vocabulary as values: frozen, validated on construction, with a JSON form. Read this file first.

Ranges are half-open. Times are float seconds and sizes int bytes, with the unit in the name.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from potluck.errors import InputError, PlanError

COORDINATOR = "coordinator"

DeviceKind = Literal["cpu", "cuda", "mps"]
Sharing = Literal["turns", "samples"]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every value: immutable, keyword-only, unknown keys refused."""


class DeviceSpec(Value, frozen=True, kw_only=True):
    """One machine, or one accelerator of it, that computes."""

    name: str
    kind: DeviceKind = "cpu"
    memory_bytes: int = 0  # 0: not limited
    threads: int = 1
    speed: float = 1.0  # emulation: 0.5 computes at half speed

    def __post_init__(self) -> None:
        if not self.name or self.name == COORDINATOR or any(c.isspace() or c in ",/" for c in self.name):
            raise InputError(f"device name {self.name!r}: give it a short word without spaces, commas or slashes")
        if self.memory_bytes < 0:
            raise InputError(f"device {self.name}: memory_bytes {self.memory_bytes}; give a size, or 0 for no limit")
        if self.threads < 1:
            raise InputError(f"device {self.name}: threads {self.threads}; give at least 1")
        if not 0 < self.speed <= 1:
            raise InputError(f"device {self.name}: speed {self.speed}; give a number above 0 and at most 1")


class Fleet(Value, frozen=True, kw_only=True):
    """The devices, and how fast the links between them are."""

    devices: tuple[DeviceSpec, ...]
    bandwidth_bytes_s: float | None = None  # of every link; None: not limited

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names:
            raise InputError("fleet: no devices; give at least one")
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise InputError(f"fleet: device {twice[0]!r} appears twice; give each its own name")
        if self.bandwidth_bytes_s is not None and self.bandwidth_bytes_s <= 0:
            raise InputError(f"fleet: bandwidth {self.bandwidth_bytes_s}; give a positive rate, or none for no limit")


class Member(Value, frozen=True, kw_only=True):
    """A device in a group, with its share."""

    device: str
    share: int  # by samples: rows of every micro-batch; by turns: micro-batches of every round


class Stage(Value, frozen=True, kw_only=True):
    """A run of blocks, and the group that holds it."""

    blocks: tuple[int, int]
    group: tuple[Member, ...]
    sharing: Sharing = "turns"
    depth: int | None = None  # forwards before the first backward (K); None: stages from here to the end


class Plan(Value, frozen=True, kw_only=True):
    """Who runs what. Whether it fits a model and a fleet is `plan/validate.py`'s question."""

    micro_batch_size: int
    micro_batches: int
    stages: tuple[Stage, ...]
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
    sample_bytes: int  # per sample
    gradient: bool  # a gradient comes back


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

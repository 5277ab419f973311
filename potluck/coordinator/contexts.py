"""What a run and each of its terms need, made before they start; nobody changes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from potluck.control.cluster_events import WantedChange
from potluck.coordinator.fleet.roster import Roster
from potluck.coordinator.run_folder.folder import RunFolder
from potluck.datasets.sample_order import DataOrder
from potluck.job.job import Job
from potluck.job.optimizers import Optimizer
from potluck.metrics.watcher import Watcher
from potluck.model.outputs import OutputForm
from potluck.program.layout import PlanLayout
from potluck.recover.copies import USUAL_COPIES, CopyRules
from potluck.tensors.model_state import ModelState
from potluck.types import CopyLine, IdleReason, Plan, RoundRecord
from potluck.wire.link import Link


class TermOver(Exception):
    """The term was given up, and the state machine knows why: there may be a next one."""


@dataclass(frozen=True)
class RunContext:
    """What holds for a whole run."""

    job: Job
    optimizer: Optimizer
    digest: str
    data_digest: str
    outputs: OutputForm
    model: ModelState
    roster: Roster
    link: Link
    folder: RunFolder
    order: DataOrder
    timeout_s: float
    watchers: tuple[Watcher, ...] = ()
    should_stop: Callable[[], bool] = lambda: False
    started_s: float = field(default_factory=time.monotonic)
    return_s: float = 30.0  # in which devices come back to a coordinator that was away
    checkpoint_s: float = 120.0  # between two checkpoints at most, where the job does not say how many rounds
    copy_rules: CopyRules = USUAL_COPIES
    first_copy_s: float = 0.0  # after which the first is made
    copy_lines: Mapping[tuple[str, str], CopyLine] = field(default_factory=dict)  # (device, guardian) → what carries it
    keeps: bool = True  # what was trained is collected, in the end at least
    heard: Callable[[str, object], None] = lambda device, message: None  # told what is not about the round in hand
    observed: Callable[[RoundRecord], None] = lambda record: None  # told of every committed round
    idle: Callable[[], dict[str, IdleReason]] = dict  # who is here and has nothing to do now, and why
    change: Callable[[int], WantedChange | None] = lambda rounds_left: None  # why the plan ends before the next round


@dataclass(frozen=True)
class TermContext:
    """What holds while one plan is in force."""

    run: RunContext
    plan: Plan
    layout: PlanLayout
    term: int
    first_round: int
    plan_reason: str = "given"
    copies: bool = True  # devices have room for copies of their states
    other_bits: str = ""  # why a round that is trained again may not give the same ones

    @property
    def alone(self) -> bool:
        """Whether one device has it all, and commits by itself."""
        return len(self.plan.devices) == 1

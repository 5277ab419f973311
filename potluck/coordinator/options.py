"""How to run, beside what to train and on what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from potluck.control.fault_script import Fault
from potluck.control.suspicion import PATIENCE_S
from potluck.metrics.watcher import Watcher
from potluck.paramserver.policy_choice import Choice
from potluck.recover.copies import USUAL_COPIES, CopyRules
from potluck.settings.address import ANY_PORT, Ports
from potluck.types import Plan
from potluck.wire.trust import ON_THIS_MACHINE, Trust


@dataclass(frozen=True)
class Options:
    """Choices of one run; every one has a default."""

    plan: Plan | Path | None = None
    run_dir: Path | None = None
    resume: bool = False
    carrier: str = "zmq"
    listen: str = "127.0.0.1:0"
    trust: Trust = ON_THIS_MACHINE  # who may speak to the coordinator
    joined: int = 0  # devices expected to join from elsewhere; 0: only the local ones
    join_timeout_s: float = 300.0
    timeout_s: float = 300.0
    profile_s: float = 15.0  # most seconds each device measures, where no plan is given
    profile_dir: Path | None = None  # where profiles from before are; None: measure every time
    plan_s: float = 2.0  # seconds to look for a plan
    tries: int = 0  # plans that are tried for a few rounds before the fastest is taken; 0: none
    silence_s: float = PATIENCE_S  # after which a device that trains counts as lost, on a calm network
    return_s: float = 30.0  # in which the devices of an interrupted run come back; they look twice a second
    checkpoint_s: float = 120.0  # between two checkpoints at most, where the job does not say how many rounds
    replan_gain: float = 0.05  # of a round, that another plan saves at least: below, predictions cannot tell them apart
    link_ports: Ports = ANY_PORT  # at which links of this process listen
    copies: CopyRules = USUAL_COPIES
    first_copy_s: float = 10.0  # training before states are first copied, for when a device is lost
    keeps: bool = True  # copies, checkpoints and the trained model; without, only records of the rounds are left
    sync: Choice | None = None  # devices train on data of their own around a parameter server, by this policy
    data: Sequence[str] = ()  # NAME=PATH of the local devices' own data; {device} stands for a device's name
    chaos: Sequence[Fault] = ()  # a rehearsal: what befalls whom
    watchers: Sequence[Watcher] = ()
    progress: Callable[[str], None] = field(default=lambda text: None)
    listening: Callable[[str], None] = field(default=lambda address: None)  # told where devices may join
    should_stop: Callable[[], bool] = field(default=lambda: False)

"""What a device does for its stage: puts it together, trains it, evaluates it, copies it, gives it away."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Protocol

import torch
from msgspec.structs import replace

from potluck.compute.runner import StageState
from potluck.control.agent_events import AgentEvent, Applied, Assembled, Evaluated, Paused, Refused, Reported, Reports
from potluck.control.agent_machine import AgentState
from potluck.device.assembling import put_together, site_of
from potluck.device.copier import Copier
from potluck.device.host.throttle import Throttle
from potluck.device.keeper import Keeper, subset
from potluck.device.stage.executor import Committer, Executor
from potluck.device.stage.verdicts import AskCoordinator, DecideAlone
from potluck.errors import Cancelled, DeviceError
from potluck.plan.schedule.holders import stage_of
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.program.program import ProgramPair
from potluck.program.validity import decode
from potluck.tensors.state_transfer import send_state
from potluck.types import COORDINATOR, DeviceSpec, Held
from potluck.wire.link import Link
from potluck.wire.messages import Begin, Committed, Evaluate, Prepare, Ready, Verdict


class StageMachine(Protocol):
    """The state machine of a device, which any thread may tell of something."""

    @property
    def state(self) -> AgentState:
        """Where it stands now."""

    def tell(self, event: AgentEvent) -> None:
        """Something happens."""

    def fetch(self, digest: str, timeout_s: float) -> bytes:
        """What the coordinator offers under a digest."""


class StageHolder:
    """The stage that a device holds, from one plan to the next."""

    def __init__(
        self, machine: StageMachine, spec: DeviceSpec, device: torch.device, throttle: Throttle,
        say: Callable[[str], None], stored: Callable[[Held, StageState, float], None], timeout_s: float,
    ) -> None:  # fmt: skip
        """`stored` is given every copy that is whole, and what it has cost, from any thread."""
        self._machine, self._spec, self._device, self._throttle, self._say = machine, spec, device, throttle, say
        self.timeout_s = timeout_s
        self.keeper = Keeper(lambda: machine.state.live)
        self._copier = Copier(self.keeper, stored, timeout_s)
        self._copy_due: Held | None = None
        self._verdicts: queue.Queue[Verdict | None] = queue.Queue()  # None: there will be none
        self._executor: Executor | None = None
        self._next: Executor | None = None  # whose state is being put together
        self._programs: tuple[str, ProgramPair] | None = None  # with their digest, as the next plan's are the same

    # --- from any thread

    def decide(self, verdict: Verdict | None) -> None:
        """What becomes of the round in hand; None if it is given up."""
        self._verdicts.put(verdict)

    def copy_soon(self, held: Held) -> None:
        """The state as of the commit that is being told is to be copied."""
        self._copy_due = held

    def adopt(self, held: Held | None) -> None:
        """What was put together is trained from now on; None: nothing is."""
        self._executor, self._next = (self._next if held is not None else None), None
        self.keeper.train(None if self._executor is None else self._executor.stage.state)

    def close(self) -> None:
        """Waits for nothing."""
        self._copier.close()

    # --- in the working thread

    def abort(self) -> None:
        """The rounds in hand are given up, but for what is committed and was not obeyed yet."""
        if self._executor is not None:
            self._executor.settle_heard(self._settled)
            self._executor.abort()

    def clear(self) -> None:
        """Makes room: the stage comes anew with the next plan."""
        self._executor = None
        self.keeper.train(None)
        self.keeper.retain(())

    def assemble(self, link: Link, order: Prepare) -> None:
        """Puts the state of a stage together. Until that is done, what was held before is still held."""
        takes_part = self._spec.name in order.plan.devices
        if takes_part:  # what others may have loaded, this device's owner has to load too
            schedule_named(order.plan.schedule)
        if self._programs is None or self._programs[0] != order.program:
            self._programs = order.program, decode(self._machine.fetch(order.program, self.timeout_s))
        while not self._verdicts.empty():  # of a round that was given up
            self._verdicts.get_nowait()
        link.adopt(order.term, order.peers, order.window_bytes)
        if self._given_up(order):  # and `adopt` has forgotten it
            raise Cancelled("the plan was given up before it was in force")
        state = put_together(link, order, self._spec.name, self.keeper, self.timeout_s)
        if takes_part:
            self._next = self._made(link, order, state, self._programs[1])
        self._machine.tell(Assembled(term=order.term))
        if self._machine.state.phase == "training":
            index = stage_of(order.plan, self._spec.name)
            first, end = order.plan.stages[index].blocks
            words = f"holds stage {index + 1} of {len(order.plan.stages)}: blocks {first}-{end - 1}"
            self._say(f"{self._spec.name} {words}")

    def _given_up(self, order: Prepare) -> bool:
        state = self._machine.state
        return state.phase != "preparing" or state.stop is not None or state.force != order

    def _made(self, link: Link, order: Prepare, state: StageState, programs: ProgramPair) -> Executor:
        site, sums = site_of(link, order, self._spec.name, state, programs, self._device, self.timeout_s)
        committer: Committer
        if order.own_commit:
            names = [s.name for s in programs.train.sources if s.kind == "parameter" and s.trainable]
            committer = DecideAlone(site.me, self._tell_ready, names, order.clip_norm, self._goes_on)
        else:
            committer = AskCoordinator(self._tell_ready, self._verdicts, self.timeout_s)
        return Executor(site, sums, committer, self._throttle)

    def _tell_ready(self, ready: Ready | Committed) -> None:
        self._machine.tell(Reports(ready=ready))

    def _goes_on(self) -> bool:
        """Whether somebody would hear of a commit."""
        return self._machine.state.phase == "training"

    def evaluate(self, order: Evaluate) -> None:
        self._duty().evaluate(order)
        self._machine.tell(Evaluated())

    def train(self, order: Begin) -> None:
        """Trains a round: to its verdict, or until the next one begins."""
        self._copier.training(self._duty().site.link)
        if self._duty().train(order, self._settled):
            self._machine.tell(Paused())

    def _settled(self, verdict: Verdict, resting: bool) -> None:
        committed = verdict.kind == "commit"
        self._machine.tell(Applied(round=verdict.round, resting=resting) if committed else Refused(round=verdict.round))
        if self._copy_due is not None:  # before another round changes the state
            held, self._copy_due = self._copy_due, None
            self._copy(held)

    def halt(self) -> None:
        """What is half done is given up."""
        raise Cancelled("the rounds in hand were given up")

    def _copy(self, held: Held) -> None:
        """Copies the state that is trained, in the background."""
        force = self._machine.state.force
        if force is None or self._executor is None or force.term != held.term:
            return
        wards = {d: replace(held, stage=stage_of(force.plan, d)) for d in force.wards}
        self._copier.copy(self._executor.site.link, held, force.guardian, wards, force.copy_line)

    def report_state(self, round: int) -> None:
        """Sends the coordinator what it saves of this stage."""
        executor = self._duty()
        parameters, buffers = executor.site.layout.reported_names(self._spec.name)
        if parameters or buffers:
            state = subset(executor.stage.state(), (*parameters, *buffers))
            send_state(executor.site.link, COORDINATOR, round, state, self.timeout_s)
        self._machine.tell(Reported())

    def _duty(self) -> Executor:
        if self._executor is None:
            raise DeviceError("an order came before a plan; join again")
        return self._executor

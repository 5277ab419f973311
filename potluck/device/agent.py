"""A device in a run: holds a stage, or trains on data of its own, and obeys orders until it is told to stop."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace

from potluck.advice import one_line
from potluck.compute.runner import StageState
from potluck.control.agent_events import (
    AgentEvent,
    AgentOrder,
    Assemble,
    Cancel,
    CoordinatorGone,
    Copied,
    Decide,
    GaveUp,
    Halt,
    HeldLongEnough,
    Keep,
    Leave,
    MakeCopy,
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
from potluck.control.agent_machine import AgentState, agent_transition
from potluck.datasets.own_data import LocalData
from potluck.device.entering import CoordinatorClient
from potluck.device.host.device_kinds import is_out_of_memory
from potluck.device.host.faults_on_order import misbehave
from potluck.device.host.throttle import Throttle
from potluck.device.measure.surveyor import Surveyor
from potluck.device.orphaned import found_again
from potluck.device.pushing.own_work import OwnWork
from potluck.device.stage_holder import StageHolder
from potluck.errors import OUT_OF_MEMORY, Cancelled, DeviceError, InputError, LinkError, PotluckError
from potluck.settings.address import LinkAddress
from potluck.types import Held
from potluck.units import duration_text
from potluck.wire.carriers import open_link
from potluck.wire.channel import Disconnected
from potluck.wire.link import Link
from potluck.wire.messages import (
    Durable,
    Failed,
    Hello,
    Leaving,
    Linked,
    Load,
    Misbehave,
    Repace,
    Stop,
    Unreachable,
    Welcome,
    Work,
)
from potluck.wire.trust import Trust

_TIMEOUT_S = 120.0  # until the coordinator says otherwise
_EXPLAINED_S, _LOOK_S = 5.0, 0.05  # in which the control channel says why a link broke


class Agent:
    """One device in one run: turns what is said and done into events of its state machine, and orders into deeds.

    One thread works, another listens; each tells the machine what happens. Orders that take time are queued for the
    first; there is never more than one of them under way.
    """

    def __init__(
        self, client: CoordinatorClient, hello: Hello, device: torch.device, bind: LinkAddress, trust: Trust,
        say: Callable[[str], None], hold_s: float = 0.0, failpoint: Callable[[str], None] = lambda order: None,
        data: Sequence[LocalData] = (),
    ) -> None:  # fmt: skip
        """`hello` is what it was let in by; it comes again whenever it looks for the coordinator."""
        self._client, self._hello, self._device, self._bind, self._say = client, hello, device, bind, say
        self._hold_s, self._failpoint, self._trust = hold_s, failpoint, trust
        self._spec = spec = hello.device
        self._throttle = Throttle(spec.speed)
        self._lock = threading.RLock()
        self._state = AgentState(me=spec.name, patient=hold_s > 0)
        self._work: queue.Queue[AgentOrder | Welcome | Load | Work] = queue.Queue()
        self._link: Link | None = None
        self._pump = threading.Thread(target=self._listen, name="potluck-orders", daemon=True)
        self._stage = StageHolder(self, spec, device, self._throttle, say, self._stored, _TIMEOUT_S)
        self._surveyor = Surveyor(client, spec, device, trust)
        self._own = OwnWork(spec.name, device, {one.name: one for one in data}, bind, trust, self._throttle, self.fetch)
        self._welcome: Welcome | None = None
        self._closed = False

    def serve(self) -> int:
        """Obeys until told to stop; a failure is reported to the coordinator before it ends this process."""
        self._pump.start()
        try:
            while True:
                order = self._work.get()  # no deadline: the pump puts Leave here when the coordinator goes silent
                if isinstance(order, Leave):
                    self._say(order.reason)
                    refused = order.refused or self._own.refused
                    return 0 if order.in_order else InputError.exit_code if refused else 1
                self._do(order)
        except PotluckError as error:
            self._fail(error)
            return error.exit_code
        except MemoryError as error:
            self._fail(DeviceError(f"{OUT_OF_MEMORY} on {self._spec.name} ({error}); give it less"))
            return 3
        except Exception as error:
            traceback.print_exc()
            if is_out_of_memory(error):
                self._fail(DeviceError(f"{OUT_OF_MEMORY} on {self._spec.name} ({one_line(error)}); give it less"))
                return 3
            self._fail(DeviceError(one_line(error)))
            return 3

    def _back(self) -> Hello:
        """What it says when it comes back: what it holds is held by this name."""
        force = self._state.force
        holds = self._own.run or (force.run if force is not None and self._state.inventory else "")
        return replace(self._hello, insists=True, holds=holds, incarnation=self._own.incarnation)

    def leave(self) -> str:
        """Asks to be let go; says what happens before. From any thread, or a signal.

        Where there is no coordinator to ask, it holds on no longer.
        """
        if self._state.sought:
            self.tell(HeldLongEnough())
            return "it holds on no longer"
        if self._own.leave(lambda: self._client.send(Leaving())):
            return "what it has trained is pushed first"
        self._client.send(Leaving())
        return "the others take over first"

    def close(self) -> None:
        """Ends everything that runs in the background."""
        self._closed = True
        self._stage.close()
        self._own.close()
        if self._link is not None:
            self._link.close()
        self._client.close()

    def _fail(self, error: PotluckError) -> None:
        self._say(str(error))
        self._client.send(Failed(text=str(error), exit_code=error.exit_code))

    # --- in the listening thread

    def _listen(self) -> None:
        """Whatever goes wrong here must not leave the device waiting for ever."""
        try:
            self._sort_orders()
        except Exception as error:
            traceback.print_exc()
            self._work.put(Leave(reason=one_line(error), in_order=False))

    def _sort_orders(self) -> None:
        while not self._closed:
            event = self._client.inbox.get()
            if isinstance(event, Disconnected):
                self.tell(CoordinatorGone(why=event.why))
                if not self._state.sought or not self._sought():
                    return
            elif isinstance(event.message, Welcome | Load | Work):
                self._work.put(event.message)
                if isinstance(event.message, Welcome):
                    self._own.interrupt()
            elif isinstance(event.message, Repace | Durable):
                self._own.hear(event.message)
            elif isinstance(event.message, Misbehave):
                if self._hello.chaos:
                    self._say(f"told to {event.message.do}, for a rehearsal")
                    misbehave(event.message, self._throttle.slow_down, self.leave)
            else:
                self.tell(event.message)
                if isinstance(event.message, Stop):
                    return

    def _sought(self) -> bool:
        """Looks for the coordinator; whether it is back."""
        address = self._client.address
        what = "its weights" if self._own.incarnation else f"round {self._newest()}"
        self._say(f"holding {what} for {duration_text(self._hold_s)}, looking for {address}")
        client = found_again(
            address, self._back(), self._hold_s, lambda: self._closed or self._state.phase == "over", self._trust
        )
        if client is None:
            self.tell(HeldLongEnough())
            return False
        self._client.close()
        self._client = client
        self._surveyor.reconnected(client)
        return True

    def _newest(self) -> int:
        return max((held.round for held in self._state.inventory), default=0)

    # --- in any thread

    @property
    def state(self) -> AgentState:
        """Where its state machine stands now."""
        return self._state

    def fetch(self, digest: str, timeout_s: float) -> bytes:
        """What the coordinator offers under a digest."""
        return self._client.fetch(digest, timeout_s)

    def tell(self, event: AgentEvent) -> None:
        """Something happens; what follows from it is done, or queued where it takes time."""
        with self._lock:
            self._state, orders = agent_transition(self._state, event)
            for order in orders:
                self._obey(order)

    def _stored(self, held: Held, state: StageState, cost_s: float) -> None:
        """A copy is whole. Kept and told as one, so that nobody is told of what was let go in between."""
        with self._lock:
            self._stage.keeper.keep(held, state)
            self.tell(Copied(held=held, cost_s=cost_s))

    def _obey(self, order: AgentOrder) -> None:
        about = order.message if isinstance(order, Tell) else None
        self._failpoint(type(order).__name__ + (f" {type(about).__name__}" if about is not None else ""))
        match order:
            case Tell():
                self._client.send(order.message)
            case Say():
                self._say(order.text)
            case Decide():
                self._stage.decide(order.verdict)
            case Cancel():
                self._stage.decide(None)
                if self._link is not None:
                    self._link.cancel(order.reason)
            case Keep():
                self._stage.keeper.retain(order.copies)
            case TrainState():
                self._stage.adopt(order.held)
            case MakeCopy():
                self._stage.copy_soon(order.held)
            case Seek():
                self._say(f"the coordinator is gone ({order.why})")
            case _:
                self._work.put(order)
                if isinstance(order, Leave):
                    self._own.interrupt()

    # --- in the working thread

    def _do(self, order: AgentOrder | Welcome | Load | Work) -> None:
        match order:
            case Welcome():
                self._enter(order)
            case Load():
                self._client.send(self._own.load(order, self._stage.timeout_s))
            case Work():
                self._train_own(order)
            case Assemble():
                self._unless_interrupted(lambda: self._stage.assemble(self._open_link(), order.prepare))
            case Train():
                self._unless_interrupted(lambda: self._stage.train(order.begin))
            case RunEvaluation():
                self._unless_interrupted(lambda: self._stage.evaluate(order.evaluate))
            case ReportState():
                self._unless_interrupted(lambda: self._stage.report_state(order.round))
            case Halt():
                self._unless_interrupted(self._stage.halt)
            case RunSurvey():
                self._survey(order.survey)

    def _enter(self, welcome: Welcome) -> None:
        self._stage.timeout_s, self._welcome = welcome.timeout_s, welcome
        if self._own.incarnation:
            self.tell(Works())
        if self._link is not None:  # of before: another coordinator may count its terms from 1 again
            self._link.close()
        self._link = open_link(welcome.carrier, self._spec.name, self._bind, self._trust, welcome.bandwidth_bytes_s)
        self._surveyor.welcomed(self._link, welcome)
        self._say(f"{self._spec.name} joined {self._client.address}")  # before anything that is said of it then
        self._client.send(Linked(address=self._link.address))

    def _train_own(self, order: Work) -> None:
        """Trains for a parameter server until something else is to be done.

        If the server cannot be reached, the control channel is about to say why.
        """
        if self._welcome is None:
            raise DeviceError("told to train before the welcome; join again")
        self._client.send(self._own.meet(order, self._welcome))
        try:
            self._own.begin(order)
            self.tell(Works())
            self._own.train(lambda: not self._work.empty())
        except LinkError as error:
            deadline = time.monotonic() + _EXPLAINED_S
            while self._work.empty() and not self._state.sought and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            if self._work.empty() and not self._state.sought:
                self._say(str(error))
                self._client.send(Unreachable(text=str(error)))

    def _unless_interrupted(self, work: Callable[[], None]) -> None:
        """Does something that needs others; if one does not answer, says so and waits for the next plan."""
        try:
            work()
        except LinkError as error:
            self._stage.abort()
            cancelled = isinstance(error, Cancelled)
            if not cancelled:
                self._say(str(error))
            self.tell(GaveUp(why="" if cancelled else str(error), peer=error.peer))

    def _survey(self, survey: Survey) -> None:
        self._stage.clear()
        try:
            self._surveyor.obey(survey)
        except LinkError as error:
            self.tell(GaveUp(why="" if isinstance(error, Cancelled) else str(error), peer=error.peer))
        else:
            self.tell(Surveyed())

    def _open_link(self) -> Link:
        if self._link is None:
            raise DeviceError("a plan came before the welcome; join again")
        return self._link

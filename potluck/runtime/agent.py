"""The process on a device: joins a coordinator, holds a stage, obeys orders until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import torch

from potluck import __version__
from potluck.errors import Cancelled, DeviceError, LinkError, PotluckError
from potluck.model.blocks import value_bytes
from potluck.model.program import ProgramPair, decode
from potluck.plan.schedule import late_weights, stage_of
from potluck.runtime.carriers import open_link
from potluck.runtime.committers import AskCoordinator, DecideAlone
from potluck.runtime.copier import Copier
from potluck.runtime.devices import host_words, settle
from potluck.runtime.exchange import Site
from potluck.runtime.executor import Committer, Executor
from potluck.runtime.keeper import Keeper, joined, subset
from potluck.runtime.layout import PlanLayout
from potluck.runtime.measuring import Surveyor
from potluck.runtime.stage import StageRunner, StageState
from potluck.runtime.state_transfer import receive_state, send_state
from potluck.runtime.sums import share_sums
from potluck.runtime.throttle import Throttle
from potluck.runtime.warm_up import warm_up
from potluck.types import COORDINATOR, DeviceSpec, Held
from potluck.wire.channel import Disconnected
from potluck.wire.control import ControlClient
from potluck.wire.link import Link
from potluck.wire.messages import (
    PROOF_VARIABLE,
    PROTOCOL,
    Abandon,
    Begin,
    Echo,
    Evaluate,
    Failed,
    FromAgent,
    FromCoordinator,
    Hello,
    Holding,
    Interrupted,
    Leaving,
    Linked,
    Measure,
    Meet,
    Prepare,
    Prepared,
    Probe,
    Stop,
    Stored,
    Verdict,
    Welcome,
)

_JOIN_TIMEOUT_S = 20.0


def run_agent(address: str, spec: DeviceSpec, bind: str, say: Callable[[str], None] = lambda text: None) -> int:
    """Serves one run as a device and says how it goes; returns the exit code."""
    sys.setswitchinterval(0.001)  # let the link's thread in quickly while this one computes
    device = settle(spec)
    warm_up(device)
    client: ControlClient[FromCoordinator, FromAgent] = ControlClient(
        address, FromCoordinator, timeout_s=_JOIN_TIMEOUT_S
    )
    agent = Agent(client, spec, device, bind, say)
    try:
        with _leaves_when_asked(agent, say):
            return agent.serve()
    finally:
        agent.close()
        client.close()


@contextlib.contextmanager
def _leaves_when_asked(agent: Agent, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C hands over and leaves; a second one leaves at once. Only where signals are heard: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def asked(number: int, frame: object) -> None:
        for known, handler in before.items():
            signal.signal(known, handler)
        say("leaving: the others take over first; once more leaves at once")
        agent.leave()

    for number in before:
        signal.signal(number, asked)
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


class Agent:
    """One device in one run."""

    def __init__(
        self, client: ControlClient[FromCoordinator, FromAgent], spec: DeviceSpec, device: torch.device, bind: str,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._client, self._spec, self._device, self._bind, self._say = client, spec, device, bind, say
        self._orders: queue.Queue[FromCoordinator] = queue.Queue()
        self._verdicts: queue.Queue[Verdict | None] = queue.Queue()
        self._link: Link | None = None
        self._over: Stop | None = None
        self._timeout_s = 120.0
        self._pump = threading.Thread(target=self._listen, name="potluck-orders", daemon=True)
        self._executor: Executor | None = None
        self._abandoned = -1  # the last term that was given up
        self._halted = False  # a round was given up: nothing more until the next plan
        self._plan: Prepare | None = None  # the one in force
        self._programs: tuple[str, ProgramPair] | None = (
            None  # digest and what it is of, as the next plan's is the same
        )
        self._keeper = Keeper()
        self._copier = Copier(self._keeper, lambda held: client.send(Stored(held=held)), self._timeout_s)
        self._surveyor = Surveyor(client, spec, device)

    def serve(self) -> int:
        """Obeys until told to stop; a failure is reported to the coordinator before it ends this process."""
        self._client.send(
            Hello(
                protocol=PROTOCOL,
                version=__version__,
                torch_version=str(torch.__version__),
                device=self._spec,
                host=host_words(self._spec.kind),
                proof=os.environ.get(PROOF_VARIABLE, ""),
            )
        )
        self._pump.start()
        try:
            while True:
                order = self._orders.get()  # no deadline: the pump puts Stop here when the coordinator goes silent
                if isinstance(order, Stop):
                    self._say(order.reason)
                    return 0 if order.in_order else 1
                self._obey(order)
        except Cancelled:
            self._say(self._over.reason if self._over is not None else "cancelled")
            return 1 if self._over is None or not self._over.in_order else 0
        except LinkError as error:
            if self._over is not None:
                self._say(self._over.reason)
                return 1
            self._fail(error)
            return error.exit_code
        except PotluckError as error:
            self._fail(error)
            return error.exit_code
        except MemoryError as error:
            self._fail(DeviceError(f"out of memory on {self._spec.name} ({error}); give it less"))
            return 3
        except Exception as error:
            traceback.print_exc()
            self._fail(DeviceError(_one_line(error)))
            return 3

    def leave(self) -> None:
        """Asks to be let go; others take over first. From any thread, or a signal."""
        self._client.send(Leaving())

    def close(self) -> None:
        self._copier.close()
        if self._link is not None:
            self._link.close()

    def _fail(self, error: PotluckError) -> None:
        self._say(str(error))
        self._client.send(Failed(text=str(error), exit_code=error.exit_code))

    def _listen(self) -> None:
        """Sorts what the coordinator says; a stop ends whatever this device is waiting for."""
        while True:
            event = self._client.inbox.get()
            if isinstance(event, Disconnected):
                message: FromCoordinator = Stop(reason=f"the coordinator is gone ({event.why})")
            else:
                message = event.message
            if isinstance(message, Verdict):
                self._verdicts.put(message)
                continue
            self._orders.put(message)
            if isinstance(message, Abandon):  # whatever is awaited will not come
                self._abandoned = message.term
                self._verdicts.put(None)
                if self._link is not None:
                    self._link.cancel(message.reason)
            if isinstance(message, Stop):
                self._over = message
                self._verdicts.put(None)
                if self._link is not None and not message.in_order:
                    self._link.cancel(message.reason)
                return

    def _obey(self, order: FromCoordinator) -> None:
        match order:
            case Welcome():
                self._timeout_s = order.timeout_s
                self._link = open_link(order.carrier, self._spec.name, self._bind, order.bandwidth_bytes_s)
                self._surveyor.welcomed(self._link, order)
                self._client.send(Linked(address=self._link.address))
                self._say(f"{self._spec.name} joined {self._client.address}")
            case Prepare():
                self._unless_interrupted(order.term, lambda: self._prepare(order))
            case Begin() | Evaluate():
                if not self._halted:
                    self._unless_interrupted(self._force().term, lambda: self._work(order))
            case Abandon():
                self._halted = True
                self._client.send(Holding(term=order.term, states=self._keeper.inventory()))
            case Echo() | Measure() | Meet() | Probe():
                self._executor = None  # its stage makes room, and comes anew with the next plan
                self._keeper.clear()
                self._surveyor.obey(order)

    def _force(self) -> Prepare:
        if self._plan is None:
            raise DeviceError("an order came before a plan; join again")
        return self._plan

    def _duty(self) -> Executor:
        if self._executor is None:
            raise DeviceError("an order came before a plan; join again")
        return self._executor

    def _unless_interrupted(self, term: int, work: Callable[[], None]) -> None:
        """Does something that needs others; if one does not answer, says so and waits for the next plan."""
        try:
            work()
        except LinkError as error:
            if self._over is not None:
                raise
            self._halted = True
            if self._executor is not None:
                self._executor.stage.abort()
            if not isinstance(error, Cancelled):
                self._say(str(error))
                self._client.send(Interrupted(term=term, text=str(error)))

    def _prepare(self, order: Prepare) -> None:
        """Puts the state of a stage together. Until that is done, what was held before is still held."""
        if self._link is None:
            raise DeviceError("a plan came before the welcome; join again")
        if self._programs is None or self._programs[0] != order.program:
            self._programs = order.program, decode(self._client.fetch(order.program, self._timeout_s))
        programs = self._programs[1]
        while not self._verdicts.empty():  # of a round that was given up
            self._verdicts.get_nowait()
        self._link.adopt(order.term, order.peers, order.window_bytes)
        if self._abandoned >= order.term or self._over is not None:  # and `adopt` has forgotten it
            raise Cancelled("the plan was given up before it was in force")
        state = self._put_together(self._link, order)
        me = self._spec.name
        if me not in order.plan.devices:  # it only had something to give
            self._client.send(Prepared(term=order.term))
            return
        layout = PlanLayout(programs, order.plan)
        index = stage_of(order.plan, me)
        mine = order.plan.stages[index]
        stage = StageRunner(
            programs, mine.blocks, state, order.optimizer, order.seed, self._device, recompute=mine.recompute,
            late_weights=late_weights(order.plan, index) > 0 and layout.awaits_gradients(index),
        )  # fmt: skip
        trainable = [s for s in programs.train.sources if s.kind == "parameter" and s.trainable]
        users = {s.name: layout.users[s.name] for s in trainable if s.name in layout.users}
        sizes = {s.name: value_bytes(programs.train.values[s.id], 1) for s in trainable}
        committer: Committer
        if order.own_commit:
            committer = DecideAlone(me, self._client.send, [s.name for s in trainable], order.clip_norm)
        else:
            committer = AskCoordinator(self._client.send, self._verdicts, self._timeout_s)
        site = Site(me, index, order.plan, layout, stage, self._link, self._timeout_s)
        sums = share_sums(order.plan, users, sizes, layout.running_statistics())
        self._executor = Executor(site, sums, committer, Throttle(self._spec.speed))
        self._keeper.train(Held(term=order.term, stage=index, round=order.round, live=True), stage.state)
        self._keeper.forget_after(order.round)
        self._halted, self._plan = False, order
        self._client.send(Prepared(term=order.term))
        first, end = order.plan.stages[index].blocks
        self._say(f"{me} holds stage {index + 1} of {len(order.plan.stages)}: blocks {first}-{end - 1}")

    def _put_together(self, link: Link, order: Prepare) -> StageState:
        """The state of this device's next stage, while others get of it what they need from here."""
        me = self._spec.name
        trouble: list[LinkError] = []

        def give() -> None:
            try:
                for move in order.moves:
                    if move.source == me and move.target != me:
                        state = subset(self._keeper.state(move.held), move.names)
                        send_state(
                            link,
                            move.target,
                            order.round,
                            state,
                            self._timeout_s,
                            move.held,
                            fixed=True,
                            term=order.term,
                        )
            except LinkError as error:
                trouble.append(error)

        giving = threading.Thread(target=give, name="potluck-giving", daemon=True)
        giving.start()
        try:
            parts = [
                subset(self._keeper.state(move.held), move.names)
                if move.source == me
                else receive_state(link, move.source, order.round, self._timeout_s, move.held)
                for move in order.moves
                if move.target == me
            ]
        finally:
            giving.join(self._timeout_s)
        if trouble:
            raise trouble[0]
        return joined(parts)

    def _work(self, order: Begin | Evaluate) -> None:
        if isinstance(order, Evaluate):
            self._duty().evaluate(order)
        else:
            self._train(self._duty(), order)

    def _train(self, executor: Executor, order: Begin) -> None:
        self._keeper.forget_before(order.point)
        verdict = executor.run_round(order)
        if verdict.kind == "stop":  # rounds begun ahead must not follow one that was not committed
            self._executor = None
            self._halted = True
        if verdict.kind == "commit":
            self._keeper.committed(order.round + 1)
            if order.copy:
                self._copy(executor.site, order.round + 1)
            if order.snapshot:
                self._report_state(executor, order.round + 1)

    def _copy(self, site: Site, round: int) -> None:
        force = self._force()
        wards = {d: Held(term=force.term, stage=stage_of(force.plan, d), round=round) for d in force.wards}
        self._copier.copy(site.link, force.guardian, wards, force.copy_bytes_s)

    def _report_state(self, executor: Executor, round: int) -> None:
        parameters, buffers = executor.site.layout.reported_names(self._spec.name)
        if parameters or buffers:
            state = subset(executor.stage.state(), (*parameters, *buffers))
            send_state(executor.site.link, COORDINATOR, round, state, self._timeout_s)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]

"""The process on a device: joins a coordinator, holds a stage, obeys orders until it is told to stop."""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable

import torch

from potluck import __version__
from potluck.errors import Cancelled, DeviceError, LinkError, PotluckError
from potluck.model.blocks import value_bytes
from potluck.model.program import decode
from potluck.plan.schedule import late_weights, stage_of
from potluck.runtime.carriers import open_link
from potluck.runtime.committers import AskCoordinator, DecideAlone
from potluck.runtime.devices import host_words, settle
from potluck.runtime.exchange import Site
from potluck.runtime.executor import Committer, Executor
from potluck.runtime.layout import PlanLayout
from potluck.runtime.measuring import Surveyor
from potluck.runtime.stage import StageRunner, StageState
from potluck.runtime.state_transfer import receive_state, send_state
from potluck.runtime.sums import share_sums
from potluck.runtime.throttle import Throttle
from potluck.runtime.warm_up import warm_up
from potluck.types import COORDINATOR, DeviceSpec
from potluck.wire.channel import Disconnected
from potluck.wire.control import ControlClient
from potluck.wire.link import Link
from potluck.wire.messages import (
    PROOF_VARIABLE,
    PROTOCOL,
    Begin,
    Echo,
    Evaluate,
    Failed,
    FromAgent,
    FromCoordinator,
    Hello,
    Linked,
    Measure,
    Meet,
    Prepare,
    Prepared,
    Probe,
    Stop,
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
        return agent.serve()
    finally:
        agent.close()
        client.close()


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
        self._halted = False  # a round was given up: nothing more until the next plan
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
                    return 0 if order.reason == "finished" else 1
                self._obey(order)
        except Cancelled:
            self._say(self._over.reason if self._over is not None else "cancelled")
            return 1 if self._over is None or self._over.reason != "finished" else 0
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

    def close(self) -> None:
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
            if isinstance(message, Stop):
                self._over = message
                self._verdicts.put(None)
                if self._link is not None and message.reason != "finished":
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
                self._prepare(order)
            case Begin():
                if not self._halted:
                    self._train(self._duty(), order)
            case Evaluate():
                self._duty().evaluate(order)
            case Echo() | Measure() | Meet() | Probe():
                self._executor = None  # its stage makes room, and comes anew with the next plan
                self._surveyor.obey(order)

    def _duty(self) -> Executor:
        if self._executor is None:
            raise DeviceError("an order came before a plan; join again")
        return self._executor

    def _prepare(self, order: Prepare) -> None:
        if self._link is None:
            raise DeviceError("a plan came before the welcome; join again")
        programs = decode(self._client.fetch(order.program, self._timeout_s))
        self._link.adopt(order.term, order.peers, order.window_bytes)
        state = receive_state(self._link, COORDINATOR, 0, self._timeout_s)
        me = self._spec.name
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
        self._halted = False
        site = Site(me, index, order.plan, layout, stage, self._link, self._timeout_s)
        sums = share_sums(order.plan, users, sizes, layout.running_statistics())
        self._executor = Executor(site, sums, committer, Throttle(self._spec.speed))
        self._client.send(Prepared(term=order.term))
        first, end = order.plan.stages[index].blocks
        self._say(f"{me} holds stage {index + 1} of {len(order.plan.stages)}: blocks {first}-{end - 1}")

    def _train(self, executor: Executor, order: Begin) -> None:
        verdict = executor.run_round(order)
        if verdict.kind == "stop":  # rounds begun ahead must not follow one that was not committed
            self._executor = None
            self._halted = True
        if verdict.kind == "commit" and order.snapshot:
            parameters, buffers = executor.site.layout.reported_names(self._spec.name)
            if parameters or buffers:
                held = executor.stage.state()
                state = StageState(
                    {n: held.parameters[n] for n in parameters},
                    {n: held.buffers[n] for n in buffers},
                    {k: t for k, t in held.optimizer.items() if k.rpartition("/")[0] in parameters},
                )
                send_state(executor.site.link, COORDINATOR, order.round + 1, state, self._timeout_s)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]

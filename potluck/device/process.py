"""The process on a device: starts it, lets Ctrl-C hand over first, and ends everything again."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from potluck.datasets.own_data import LocalData
from potluck.device.agent import Agent
from potluck.device.entering import CoordinatorClient, first_words, let_in
from potluck.device.host.device_kinds import settle
from potluck.device.host.warm_up import warm_up
from potluck.settings.address import LinkAddress
from potluck.settings.extensions import load_extensions
from potluck.types import DeviceSpec
from potluck.units import duration_text
from potluck.wire.control_channel import ControlClient
from potluck.wire.messages import FromCoordinator, Hello
from potluck.wire.trust import ON_THIS_MACHINE, Trust

# To find the coordinator, at least: started together with this device, it may still be loading torch.
_JOIN_TIMEOUT_S = 20.0
_ANSWER_S = 300.0  # a coordinator that looks for a plan lets nobody in meanwhile


def run_agent(
    address: str, spec: DeviceSpec, bind: LinkAddress, say: Callable[[str], None] = lambda text: None,
    hold_s: float = 0.0, chaos: bool = False, failpoint: Callable[[str], None] = lambda order: None,
    data: Sequence[LocalData] = (), insists: bool = True, trust: Trust = ON_THIS_MACHINE,
) -> int:  # fmt: skip
    """Serves one run as a device and says how it goes; returns the exit code.

    The coordinator may start up to `hold_s` seconds later, and when it is gone, what the device holds is kept as long
    in case it comes back. With `chaos` it misbehaves when it is told to. Tests give a `failpoint`: it is told every
    order's name before it is obeyed. `data` are the data sets of its owner, which never leave it. Unless it `insists`
    on its name, it is called something else where that is taken. `trust` says who may speak to it.
    """
    load_extensions()
    sys.setswitchinterval(0.001)  # let the link's thread in quickly while this one computes
    device = settle(spec)
    warm_up(device)
    gc.freeze()  # what is loaded stays: no collection has to look at it again
    wait_s = max(_JOIN_TIMEOUT_S, hold_s)
    client: CoordinatorClient = ControlClient(
        address, FromCoordinator, timeout_s=wait_s, trust=trust,
        nobody_yet=lambda why: say(nobody_yet(address, why, wait_s)),
    )  # fmt: skip
    try:
        hello = _named(client, first_words(spec, chaos=chaos, insists=insists), say)
    except BaseException:
        client.close()
        raise
    agent = Agent(client, hello, device, bind, trust, say, hold_s, failpoint, data)
    try:
        with _leaves_when_asked(agent, say):
            return agent.serve()
    finally:
        agent.close()


def _named(client: CoordinatorClient, hello: Hello, say: Callable[[str], None]) -> Hello:
    """What this device says of itself, with the name that it was let in by."""
    asked, name = hello.device.name, let_in(client, hello, _ANSWER_S).name
    if name != asked:
        say(f"the name {asked} is taken: this device is called {name}; --name chooses another")
    return replace(hello, device=replace(hello.device, name=name))


def nobody_yet(address: str, why: str, wait_s: float) -> str:
    """That a coordinator is waited for, until when by the clock on the wall, and what to do meanwhile."""
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + wait_s))
    return (
        f"nobody listens at {address} ({why}); trying until {until}, for {duration_text(wait_s)} (--hold): "
        f"there, start potluck train JOB --listen {address} --devices N, or check host, port and firewall"
    )


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
        say(f"leaving: {agent.leave()}; once more leaves at once")

    for number in before:
        signal.signal(number, asked)
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)

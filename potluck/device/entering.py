"""How a device comes in: it says who it is, and the coordinator gives it a name, or says why it is turned away."""

from __future__ import annotations

import os
import queue

import torch

from potluck import __version__
from potluck.device.host.device_kinds import host_words, machine_word
from potluck.errors import DeviceError, InputError, PotluckError
from potluck.types import DeviceSpec
from potluck.wire.channel import Disconnected
from potluck.wire.control_channel import ControlClient
from potluck.wire.messages import PROOF_VARIABLE, PROTOCOL, FromAgent, FromCoordinator, Hello, Stop, Welcome

CoordinatorClient = ControlClient[FromCoordinator, FromAgent]


def first_words(spec: DeviceSpec, *, chaos: bool, insists: bool) -> Hello:
    """Who this is, before it was let in; one that `insists` has its name, or is turned away."""
    return Hello(
        protocol=PROTOCOL, version=__version__, torch_version=str(torch.__version__), device=spec,
        host=host_words(spec.kind), machine=machine_word(), insists=insists,
        proof=os.environ.get(PROOF_VARIABLE, ""), chaos=chaos,
    )  # fmt: skip


def let_in(client: CoordinatorClient, hello: Hello, timeout_s: float) -> Welcome:
    """What the coordinator answers, which is also left for whoever reads the connection; an error if it is no."""
    client.send(hello)
    try:
        event = client.inbox.get(timeout=timeout_s)
    except queue.Empty:
        raise DeviceError(f"{client.address} lets nobody in after {timeout_s:.0f} s; join again") from None
    if isinstance(event, Disconnected):
        raise PotluckError(f"the coordinator is gone ({event.why})")
    if isinstance(event.message, Stop):
        raise InputError(event.message.reason)
    if not isinstance(event.message, Welcome):
        raise DeviceError(f"{client.address} gives orders before it lets this device in; join again")
    client.inbox.put(event)  # nothing else is said before the device is linked
    return event.message

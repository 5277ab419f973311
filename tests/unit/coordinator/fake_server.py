"""A control server without sockets: events go in by hand."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, cast

from potluck.control.suspicion import PATIENCE_S
from potluck.coordinator.fleet.roster import Roster
from potluck.types import DeviceSpec
from potluck.wire.channel import Received, Watch
from potluck.wire.messages import PROTOCOL, Hello, Linked, Welcome


class FakeServer:
    """Events go in by hand; what is sent is kept."""

    def __init__(self) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        self.sent: list[tuple[int, object]] = []
        self.cut_off: list[int] = []
        self.accepted: list[int] = []
        self.watches: dict[int, Watch] = {}

    def send(self, peer_id: int, message: object) -> None:
        self.sent.append((peer_id, message))

    def disconnect(self, peer_id: int, why: str) -> None:
        self.cut_off.append(peer_id)

    def accept(self, peer_id: int) -> None:
        self.accepted.append(peer_id)

    def watch(self, peer_id: int, watch: Watch) -> None:
        watch.heard(0.0)
        self.watches[peer_id] = watch

    def arrives(self, peer_id: int, name: str, protocol: int = PROTOCOL, **more: Any) -> None:
        hello = Hello(protocol=protocol, version="0", torch_version="0", device=DeviceSpec(name=name), **more)
        self.events.put(Received(peer_id, hello))
        self.events.put(Received(peer_id, Linked(address="127.0.0.1:1")))


def roster_of(
    say: Callable[[str], None] = lambda text: None, silence_s: float = PATIENCE_S
) -> tuple[Roster, FakeServer]:
    """A roster, and the server that it listens to."""
    server = FakeServer()
    welcome = Welcome(name="", carrier="zmq", bandwidth_bytes_s=None, timeout_s=1.0)
    return Roster(cast(Any, server), welcome, say, silence_s), server

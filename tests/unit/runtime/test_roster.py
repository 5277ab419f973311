"""Who is let in. No sockets: a fake server hands out events and notes what it is told."""

import queue
import time
from typing import Any, cast

import pytest

from potluck.errors import DeviceError
from potluck.runtime.roster import Roster
from potluck.types import DeviceSpec
from potluck.wire.channel import Received
from potluck.wire.messages import PROTOCOL, Hello, Linked, Stop, Welcome


class FakeServer:
    """Events go in by hand; what is sent is kept."""

    def __init__(self) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        self.sent: list[tuple[int, object]] = []
        self.cut_off: list[int] = []

    def send(self, peer_id: int, message: object) -> None:
        self.sent.append((peer_id, message))

    def disconnect(self, peer_id: int, why: str) -> None:
        self.cut_off.append(peer_id)

    def arrives(self, peer_id: int, name: str, protocol: int = PROTOCOL) -> None:
        hello = Hello(protocol=protocol, version="0", torch_version="0", device=DeviceSpec(name=name))
        self.events.put(Received(peer_id, hello))
        self.events.put(Received(peer_id, Linked(address="127.0.0.1:1")))


def _roster() -> tuple[Roster, FakeServer]:
    server = FakeServer()
    return Roster(cast(Any, server), Welcome(carrier="zmq", bandwidth_bytes_s=None, timeout_s=1.0)), server


def _nobody(name: str) -> None:
    pass


def test_so_many_devices_of_any_name_are_let_in():
    roster, server = _roster()
    server.arrives(1, "a")
    server.arrives(2, "b")
    roster.gather(2, 5.0, _nobody)
    assert set(roster.links) == {"a", "b"}
    assert not server.cut_off


def test_one_who_comes_after_the_run_has_begun_is_turned_away_and_disturbs_nobody():
    roster, server = _roster()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    server.arrives(2, "late")
    with pytest.raises(DeviceError, match="time is up"):
        roster.next(time.monotonic() + 0.5, "waiting")
    assert server.cut_off == [2]
    assert server.sent[-1] == (2, Stop(reason="the run has all its devices; join the next one"))
    assert set(roster.specs) == {"a"}


def test_where_names_are_known_a_stranger_takes_no_place():
    roster, server = _roster()
    server.arrives(1, "stranger")
    server.arrives(2, "a")
    roster.gather(["a"], 5.0, _nobody)
    assert set(roster.specs) == {"a"}
    assert server.cut_off == [1]


@pytest.mark.parametrize(("name", "protocol", "why"), [("a", PROTOCOL, "already here"), ("b", 0, "protocol 0")])
def test_a_name_twice_or_another_protocol_is_turned_away(name, protocol, why):
    roster, server = _roster()
    server.arrives(1, "a")
    server.arrives(2, name, protocol)
    server.arrives(3, "c")
    roster.gather(2, 5.0, _nobody)
    assert server.cut_off == [2]
    stop = next(message for number, message in server.sent if number == 2)
    assert isinstance(stop, Stop)
    assert why in stop.reason

"""A device whose coordinator is gone: when it takes somebody for the coordinator again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from potluck.device.entering import first_words
from potluck.device.orphaned import found_again
from potluck.types import DeviceSpec
from potluck.wire.channel import Received
from potluck.wire.control_channel import ControlServer
from potluck.wire.messages import FromAgent, FromCoordinator, Stop, Welcome
from potluck.wire.trust import ON_THIS_MACHINE

SOON_S = 20.0
HELLO = first_words(DeviceSpec(name="a"), chaos=False, insists=True)
Server = ControlServer[FromAgent, FromCoordinator]


@pytest.fixture
def server() -> Iterator[Server]:
    server: Server = ControlServer("127.0.0.1", 0, FromAgent)
    yield server
    server.close()


def answering(server: Server, *answers: FromCoordinator) -> threading.Thread:
    """Answers every hello in turn."""

    def answer() -> None:
        waiting = list(answers)
        while waiting:
            event: Any = server.events.get(timeout=SOON_S)
            if isinstance(event, Received):
                server.send(event.peer_id, waiting.pop(0))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def test_whoever_turns_it_away_is_asked_again_and_whoever_lets_it_in_is_the_coordinator(server: Server) -> None:
    welcome = Welcome(name="a", carrier="zmq")
    thread = answering(server, Stop(reason="the name a is taken"), welcome)
    client = found_again(server.address, HELLO, SOON_S, lambda: False, ON_THIS_MACHINE)
    thread.join(SOON_S)
    assert client is not None
    try:
        assert client.inbox.get(timeout=SOON_S) == Received(0, welcome)  # left for whoever reads on
    finally:
        client.close()


def test_it_looks_no_longer_than_it_holds_or_once_it_is_closed(server: Server) -> None:
    assert found_again(server.address, HELLO, 0.0, lambda: False, ON_THIS_MACHINE) is None
    assert found_again(server.address, HELLO, SOON_S, lambda: True, ON_THIS_MACHINE) is None
    assert server.events.empty()

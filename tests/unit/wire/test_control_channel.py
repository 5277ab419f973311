"""The control channel where no peer process is needed; the rest is in tests/process/test_control_channel.py."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from potluck.errors import DeviceError, InputError
from potluck.wire.channel import STRANGER_MESSAGES, Connected, Disconnected, Received
from potluck.wire.control_channel import ControlClient, ControlServer

SOON_S = 20.0


class Say(msgspec.Struct, tag="say"):
    text: str


Server = ControlServer[Say, Say]
Client = ControlClient[Say, Say]


@pytest.fixture
def server() -> Iterator[Server]:
    server: Server = ControlServer("127.0.0.1", 0, Say)
    yield server
    server.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client: Client = ControlClient(server.address, Say)
    yield client
    client.close()


def event(server: Server, kind: type) -> Any:
    found = server.events.get(timeout=SOON_S)
    assert isinstance(found, kind), found
    return found


def test_of_a_stranger_only_a_few_messages_are_kept_and_of_a_friend_all(server: Server, client: Client) -> None:
    peer = event(server, Connected).peer_id
    for number in range(STRANGER_MESSAGES + 3):
        client.send(Say(str(number)))
    kept = [event(server, Received).message.text for _ in range(STRANGER_MESSAGES)]
    assert kept == [str(number) for number in range(STRANGER_MESSAGES)]
    deadline = time.monotonic() + SOON_S
    while server.dropped_messages < 3:  # before the connection ends, and what is still on its way with it
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.disconnect(peer, "enough")
    assert client.inbox.get(timeout=SOON_S) == Disconnected(0, "the other side closed: enough")
    event(server, Disconnected)
    assert server.dropped_messages == 3

    friend: Client = ControlClient(server.address, Say)
    try:
        server.accept(event(server, Connected).peer_id)
        for number in range(STRANGER_MESSAGES + 3):
            friend.send(Say(str(number)))
        assert [event(server, Received).message.text for _ in range(STRANGER_MESSAGES + 3)][-1] == "18"
    finally:
        friend.close()


def test_a_blob_is_fetched_by_its_digest_and_only_by_that(server: Server, client: Client) -> None:
    data = b"program" * 1000
    digest = hashlib.sha256(data).hexdigest()
    server.offer(digest, data)
    assert client.fetch(digest, SOON_S) == data
    with pytest.raises(DeviceError, match="does not offer 000000000000; restart this device"):
        client.fetch("0" * 64, SOON_S)
    with pytest.raises(ValueError, match="another SHA-256"):
        server.offer(digest, b"something else")


def test_a_blob_that_is_something_else_is_not_believed(server: Server, client: Client) -> None:
    server._blobs["0" * 64] = b"forged"
    with pytest.raises(DeviceError, match="something else; do not trust this network"):
        client.fetch("0" * 64, SOON_S)


@pytest.mark.parametrize("address", ["nowhere", ":80", "host:", "host:eighty"])
def test_an_address_without_host_and_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(InputError, match="give HOST:PORT"):
        ControlClient(address, Say)


def test_where_nobody_listens_it_is_said_once_and_given_up_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said: list[str] = []
    with pytest.raises(DeviceError, match=rf"no coordinator at 127\.0\.0\.1:{port} after 0\.3 s"):
        ControlClient(f"127.0.0.1:{port}", Say, timeout_s=0.3, nobody_yet=said.append)
    assert len(said) == 1


def test_a_port_that_is_in_use_is_named_with_what_to_do(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(InputError, match=rf"port {port} on 127\.0\.0\.1 is in use; .*another port"):
        ControlServer("127.0.0.1", port, Say)


def test_closing_twice_does_no_harm_and_frees_the_port(server: Server) -> None:
    host, _, port = server.address.rpartition(":")
    server.close()
    server.close()
    again: Server = ControlServer(host, int(port), Say)
    again.close()

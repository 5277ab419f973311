"""Who may speak is asked where somebody connects, and another kind of trust is a class: nothing else changes."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.errors import DeviceError, InputError, PeerLost
from potluck.settings.address import HERE
from potluck.types import DeviceSpec, Fleet
from potluck.wire.carriers import open_link
from potluck.wire.control_channel import ControlClient, ControlServer
from potluck.wire.link import Link, Tag
from potluck.wire.trust import ON_THIS_MACHINE, PlainTrust, SocketOption, Trust

SOON_S = 20.0
ONE_ADDRESS = PlainTrust((IPv4Network("127.0.0.1/32"),))
X = Tag("x")


class Keys(PlainTrust):
    """Encrypts everything: TLS without certificates, and one pair of keys for every link of the fleet."""

    public, secret = zmq.curve_keypair()

    def server_context(self) -> ssl.SSLContext:  # type: ignore[override]
        return _tls(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext:  # type: ignore[override]
        return _tls(ssl.PROTOCOL_TLS_CLIENT)

    def link_options(self, peer: str | None) -> Sequence[SocketOption]:
        own = [(zmq.CURVE_PUBLICKEY, self.public), (zmq.CURVE_SECRETKEY, self.secret)]
        return [
            *super().link_options(peer),
            *own,
            (zmq.CURVE_SERVER, 1) if peer is None else (zmq.CURVE_SERVERKEY, self.public),
        ]


def _tls(side: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")  # those that need no certificate
    return context


@contextlib.contextmanager
def serving(trust: Trust) -> Iterator[ControlServer[str, str]]:
    server: ControlServer[str, str] = ControlServer("127.0.0.1", 0, str, trust=trust)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def opened(carrier: str, trusts: dict[str, Trust]) -> Iterator[list[Link]]:
    links = [open_link(carrier, name, HERE, trust) for name, trust in trusts.items()]
    try:
        for name, link in zip(trusts, links, strict=True):
            link.adopt(1, {o: other.address for o, other in zip(trusts, links, strict=True) if o != name})
        yield links
    finally:
        for link in links:
            link.close()


def answer_to(request: bytes, server: ControlServer[str, str], source: str) -> bytes:
    """What a control server says to somebody who comes from this address."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), SOON_S, source_address=(source, 0)) as connection:
        connection.sendall(request + b" HTTP/1.1\r\nHost: potluck\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize("request_line", [b"GET /control", b"GET /blob/abc", b"GET /anything"])
def test_a_control_server_tells_who_is_not_admitted_why_and_nothing_else(request_line: bytes) -> None:
    with serving(ONE_ADDRESS) as server:
        refused = answer_to(request_line, server, "127.0.0.2")
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert refused.endswith(ONE_ADDRESS.refusal("127.0.0.2", "control").encode())  # type: ignore[union-attr]
        assert b" 403 " not in answer_to(request_line, server, "127.0.0.1")
        assert server.events.empty()


def test_a_fleet_asks_the_trust_of_its_options() -> None:
    here, nobody = Fleet(devices=(DeviceSpec(name="here"),)), Options(trust=PlainTrust(()))
    with pytest.raises(DeviceError, match=r"does not let this device in"), LiveFleet(here, nobody):
        pass


def test_a_device_that_is_not_admitted_is_told_what_to_do() -> None:
    with serving(PlainTrust(())) as server, pytest.raises(DeviceError, match=r"--plain-network that this device is in"):
        ControlClient(server.address, str, timeout_s=SOON_S)


def test_a_zmq_link_hears_nobody_who_is_not_admitted() -> None:
    with opened("zmq", {"a": ONE_ADDRESS}) as (link,):
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            assert _shakes_hands(context, link.address, "127.0.0.1")
            assert not _shakes_hands(context, link.address, "127.0.0.2")
        finally:
            context.destroy(linger=0)


def _shakes_hands(context: zmq.Context[zmq.Socket[bytes]], address: str, source: str) -> bool:
    knocking = context.socket(zmq.DEALER)
    monitor = knocking.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    knocking.connect(address.replace("tcp://", f"tcp://{source}:0;"))
    assert monitor.poll(int(SOON_S * 1000)), "neither let in nor turned away"
    return bool(recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)


def test_a_gloo_link_meets_nobody_who_is_not_admitted() -> None:
    elsewhere = PlainTrust((IPv4Network("10.0.0.0/8"),))
    why = r"link: 127\.0\.0\.1 is not in 10\.0\.0\.0/8"
    with opened("gloo", {"a": elsewhere, "b": ON_THIS_MACHINE}) as (a, _), pytest.raises(PeerLost, match=why):
        a.receive("b", X, SOON_S)


def test_gloo_takes_no_keys() -> None:
    with pytest.raises(InputError, match=r"gloo cannot be encrypted"):
        open_link("gloo", "a", HERE, Keys())


def test_with_other_keys_links_talk_to_their_own_and_to_nobody_else() -> None:
    with opened("zmq", {"a": Keys(), "b": Keys()}) as (a, b):
        a.send("b", X, [b"secret"], SOON_S)
        assert bytes(b.receive("a", X, SOON_S)[0]) == b"secret"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            assert not _shakes_hands(context, b.address, "127.0.0.1")
        finally:
            context.destroy(linger=0)


def test_with_tls_the_control_channel_speaks_to_its_own_and_to_nobody_else() -> None:
    with serving(Keys()) as server:
        server.offer("a591a6d40bf420404a011733cfb7b190d62c65bf0bcda32b57b277d9ad9f146e", b"Hello World")
        client: ControlClient[str, str] = ControlClient(server.address, str, timeout_s=SOON_S, trust=Keys())
        try:
            client.send("hello")
            heard = [server.events.get(timeout=SOON_S) for _ in range(2)]
            assert "hello" in str(heard[1])
            digest = "a591a6d40bf420404a011733cfb7b190d62c65bf0bcda32b57b277d9ad9f146e"
            assert client.fetch(digest, SOON_S) == b"Hello World"
        finally:
            client.close()
        with pytest.raises(DeviceError):
            ControlClient(server.address, str, timeout_s=0.5)
    with serving(ON_THIS_MACHINE) as plain, pytest.raises(DeviceError):
        ControlClient(plain.address, str, timeout_s=0.5, trust=Keys())

"""The control channel: what is said arrives, who dies is reported, who is merely busy is not."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from potluck.errors import DeviceError, InputError
from potluck.wire.channel import STRANGER_BYTES, STRANGER_MESSAGES, Connected, Disconnected, Received
from potluck.wire.control_channel import ControlClient, ControlServer

HERE = Path(__file__).parent
SOON_S = 20.0


class Say(msgspec.Struct, tag="say"):
    text: str


class Hold(msgspec.Struct, tag="hold"):
    seconds: float


Message = Say | Hold
Server = ControlServer[Message, Message]
Client = ControlClient[Message, Message]


@pytest.fixture
def server() -> Iterator[Server]:
    server: Server = ControlServer("127.0.0.1", 0, Message)
    yield server
    server.close()


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Client]]:
    """Makes clients that are closed after the test."""
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        clients.append(ControlClient(server.address, Message, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def start_peer(server: Server) -> Iterator[Callable[[], tuple[int, subprocess.Popen[bytes]]]]:
    """Starts a peer process and returns its number on the server, once it has said hello."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> tuple[int, subprocess.Popen[bytes]]:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        started.append(
            subprocess.Popen([sys.executable, str(HERE / "control_peer.py"), server.address], env=environment)
        )
        peer_id = next_event(server, Connected).peer_id
        assert next_event(server, Received) == Received(peer_id, Say("hello"))
        return peer_id, started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(SOON_S)


def next_event(server: Server, kind: type) -> Any:
    """The next event, which must be of this kind."""
    event = server.events.get(timeout=SOON_S)
    assert isinstance(event, kind), event
    return event


async def speak_raw(address: str, text: str | bytes) -> tuple[int | None, str]:
    """Send something as a bare WebSocket and return how the server closed it."""
    async with aiohttp.ClientSession() as session, session.ws_connect(f"http://{address}/control") as raw:
        await (raw.send_str(text) if isinstance(text, str) else raw.send_bytes(text))
        while True:
            message = await raw.receive(timeout=SOON_S)
            if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
                return raw.close_code, str(message.extra)


def test_messages_arrive_in_order_both_ways(server: Server, connect: Callable[..., Client]) -> None:
    client = connect()
    peer_id = next_event(server, Connected).peer_id
    server.accept(peer_id)
    for number in range(100):
        client.send(Say(f"to server {number}"))
        server.send(peer_id, Hold(number))
    for number in range(100):
        assert next_event(server, Received) == Received(peer_id, Say(f"to server {number}"))
        assert client.inbox.get(timeout=SOON_S) == Received(0, Hold(number))


def test_each_client_has_its_own_number(server: Server, connect: Callable[..., Client]) -> None:
    clients = {}
    for _ in range(3):
        client = connect()
        clients[next_event(server, Connected).peer_id] = client
    for peer_id in clients:
        server.send(peer_id, Say(str(peer_id)))
    for peer_id, client in clients.items():
        assert client.inbox.get(timeout=SOON_S) == Received(0, Say(str(peer_id)))
    server.send(999, Say("to nobody"))


def test_either_side_hears_why_the_other_closed(server: Server, connect: Callable[..., Client]) -> None:
    leaving, refused = connect(), connect()
    first, second = (next_event(server, Connected).peer_id for _ in range(2))
    leaving.close()
    leaving.close()
    assert next_event(server, Disconnected).peer_id == first
    server.disconnect(second, "the fleet is full")
    ended = refused.inbox.get(timeout=SOON_S)
    assert isinstance(ended, Disconnected)
    assert "the fleet is full" in ended.why


def test_closing_the_server_ends_every_client_and_frees_the_port(
    server: Server, connect: Callable[..., Client]
) -> None:
    client = connect()
    next_event(server, Connected)
    started = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - started < 3.0
    assert isinstance(client.inbox.get(timeout=SOON_S), Disconnected)
    again: Server = ControlServer("127.0.0.1", int(server.address.rpartition(":")[2]), Message)
    again.close()


def test_a_port_in_use_is_named_with_the_fix(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(InputError, match=f"port {port} on 127.0.0.1 is in use.*another port"):
        ControlServer("127.0.0.1", port, Message)


def test_a_refused_connection_is_a_clear_error_at_the_deadline() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        started = time.monotonic()
        said: list[str] = []
        with pytest.raises(DeviceError, match=rf"no coordinator at {address} after 0.5 s \(Connection refused\)"):
            ControlClient(address, Message, timeout_s=0.5, nobody_yet=said.append)
        assert time.monotonic() - started < 3.0
        assert said == ["Connection refused"]  # once, however often it was tried


def test_a_listener_that_never_answers_is_a_clear_error_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(DeviceError, match=rf"no coordinator at {address} after 0.5 s \(no answer\)"):
            ControlClient(address, Message, timeout_s=0.5)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP 404"), (b"SSH-2.0-OpenSSH\r\n", "no HTTP")],
)
def test_somebody_else_who_listens_is_said_at_once(answer: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def reply() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply, daemon=True)
        thread.start()
        with pytest.raises(InputError, match=rf"{address}, not a potluck coordinator \({words}\); give the address"):
            ControlClient(address, Message, timeout_s=SOON_S)
        thread.join(SOON_S)


def test_an_address_without_port_is_refused() -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        ControlClient("somewhere", Message)


@pytest.mark.parametrize("text", ["not json", '{"type": "say"}', '{"type": "evil"}', "[]", b"binary"])
def test_a_malformed_message_closes_that_connection_only(
    server: Server, connect: Callable[..., Client], text: str | bytes
) -> None:
    client = connect()
    good = next_event(server, Connected).peer_id
    _, reason = asyncio.run(speak_raw(server.address, text))
    assert "malformed" in reason
    bad = next_event(server, Connected).peer_id
    ended = next_event(server, Disconnected)
    assert ended.peer_id == bad
    assert "malformed" in ended.why
    client.send(Say("still here"))
    assert next_event(server, Received) == Received(good, Say("still here"))


def test_a_message_over_the_limit_closes_the_connection() -> None:
    server: Server = ControlServer("127.0.0.1", 0, Message, max_message_bytes=1000)
    try:
        code, _ = asyncio.run(speak_raw(server.address, '{"type": "say", "text": "' + "x" * 2000 + '"}'))
        assert code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        next_event(server, Connected)
        next_event(server, Disconnected)
    finally:
        server.close()


def test_a_web_page_cannot_connect(server: Server) -> None:
    async def browse() -> None:
        async with aiohttp.ClientSession() as session:
            await session.ws_connect(f"http://{server.address}/control", origin="http://evil.example")

    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        asyncio.run(browse())
    with pytest.raises(queue.Empty):
        server.events.get_nowait()


def test_blobs_are_fetched_by_digest_and_verified(server: Server, connect: Callable[..., Client]) -> None:
    client = connect()
    data = os.urandom(3_000_000)
    digest = hashlib.sha256(data).hexdigest()
    with pytest.raises(DeviceError, match="does not offer"):
        client.fetch(digest, SOON_S)
    server.offer(digest, data)
    assert client.fetch(digest, SOON_S) == data
    with pytest.raises(ValueError, match="another SHA-256"):
        server.offer(digest, b"something else")
    server._blobs[digest] = b"something else"  # a coordinator that lies
    with pytest.raises(DeviceError, match="is something else"):
        client.fetch(digest, SOON_S)


# --- strangers


@pytest.mark.parametrize(("count", "size"), [(200, 1), (40, STRANGER_BYTES // 10), (3, STRANGER_BYTES + 1)])
def test_of_one_who_is_not_accepted_only_a_few_messages_are_kept(
    server: Server, connect: Callable[..., Client], count: int, size: int
) -> None:
    client = connect()
    next_event(server, Connected)
    for _ in range(count):
        client.send(Say("x" * size))
    client.close()
    kept = 0
    while isinstance(server.events.get(timeout=SOON_S), Received):
        kept += 1
    assert kept <= STRANGER_MESSAGES
    assert kept * size <= STRANGER_BYTES
    assert kept + server.dropped_messages == count


def test_garbage_on_the_control_port_is_not_talked_about(
    server: Server, connect: Callable[..., Client], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.address.rpartition(":")
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\xfc\r\n\r\n", b"GET / HTTP/9.9\r\nbad header\r\n\r\n", b"\0" * 9000):
        with socket.create_connection((host, int(port)), timeout=SOON_S) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while raw.recv(4096):
                    pass
    connect().send(Say("still here"))
    next_event(server, Connected)
    assert next_event(server, Received).message == Say("still here")
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


# --- who is alive


def test_a_killed_peer_is_reported_at_once(
    server: Server, start_peer: Callable[[], tuple[int, subprocess.Popen[bytes]]]
) -> None:
    peer_id, process = start_peer()
    started = time.monotonic()
    process.kill()
    assert next_event(server, Disconnected).peer_id == peer_id
    assert time.monotonic() - started < 1.0


def test_a_stopped_peer_is_reported_as_silent(
    server: Server, start_peer: Callable[[], tuple[int, subprocess.Popen[bytes]]]
) -> None:
    peer_id, process = start_peer()
    started = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    ended = next_event(server, Disconnected)
    assert ended.peer_id == peer_id
    assert "nothing was heard" in ended.why
    assert time.monotonic() - started < 4.5


def test_a_peer_that_holds_the_interpreter_for_two_seconds_is_not_dead(
    server: Server, start_peer: Callable[[], tuple[int, subprocess.Popen[bytes]]]
) -> None:
    peer_id, _ = start_peer()
    started = time.monotonic()
    server.send(peer_id, Hold(2.0))
    assert next_event(server, Received) == Received(peer_id, Say("held"))
    assert time.monotonic() - started >= 2.0


def test_a_side_that_was_held_up_itself_does_not_call_the_other_silent() -> None:
    server: Server = ControlServer("127.0.0.1", 0, Message, silence_s=0.5)
    client: Client = ControlClient(server.address, Message, silence_s=0.5)
    try:
        peer_id = next_event(server, Connected).peer_id
        ctypes.PyDLL(None).usleep(1_500_000)  # holds the interpreter lock: neither side's thread runs
        client.send(Say("still here"))
        assert next_event(server, Received) == Received(peer_id, Say("still here"))
    finally:
        client.close()
        server.close()


def test_a_client_notices_a_server_that_falls_silent() -> None:
    """A server that accepts, then says nothing and answers no ping."""

    async def accept(address: list[str], ready: threading.Event, done: threading.Event) -> None:
        async def handle(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
            mute = aiohttp.web.WebSocketResponse(autoping=False)
            await mute.prepare(request)
            await asyncio.to_thread(done.wait, SOON_S)
            return mute

        app = aiohttp.web.Application()
        app.router.add_get("/control", handle)
        runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await asyncio.to_thread(done.wait, SOON_S)
        await runner.cleanup()

    address: list[str] = []
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(accept(address, ready, done)))
    thread.start()
    try:
        assert ready.wait(SOON_S)
        client: Client = ControlClient(address[0], Message, silence_s=0.5)
        ended = client.inbox.get(timeout=SOON_S)
        assert isinstance(ended, Disconnected)
        assert "nothing was heard" in ended.why
        client.close()
    finally:
        done.set()
        thread.join(SOON_S)

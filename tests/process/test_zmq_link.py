"""What is particular to the ZeroMQ carrier: hostile bytes on its socket, and lost messages."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from potluck.errors import InputError, PeerLost
from potluck.settings.address import LinkAddress
from potluck.wire.frames import PROTOCOL_VERSION, CreditHeader, MessageHeader, encode_header
from potluck.wire.link import Tag
from potluck.wire.zmq_link import ZmqLink

SOON_S = 20.0


class Stranger:
    """A bare socket that speaks to a link under a name of its choice."""

    def __init__(self, name: str, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, name.encode())
        self._socket.connect(address)

    def say(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def links() -> Iterator[tuple[ZmqLink, ZmqLink]]:
    a, b = ZmqLink("a"), ZmqLink("b")
    a.adopt(1, {"b": b.address})
    b.adopt(1, {"a": a.address, "stranger": "tcp://127.0.0.1:9"})
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def stranger(links: tuple[ZmqLink, ZmqLink]) -> Iterator[Stranger]:
    stranger = Stranger("stranger", links[1].address)
    yield stranger
    stranger.close()


def header(sequence: int, *sizes: int, version: int = PROTOCOL_VERSION) -> bytes:
    return encode_header(MessageHeader(version, 1, sequence, Tag("x"), sizes))


def test_malformed_frames_are_counted_and_harm_nobody(links: tuple[ZmqLink, ZmqLink], stranger: Stranger) -> None:
    a, b = links
    hostile = [
        (b"",),
        (b"\xff" * 100, b"data"),
        (b"x" * 100_000,),
        (header(0, 4, version=99), b"data"),
        (header(0, 5), b"data"),
        (header(0, 4),),
        (header(0, -4), b""),
        (encode_header(CreditHeader(PROTOCOL_VERSION, 1, 10**9)),),
        (header(0)[:-1],),
    ]
    for frames in hostile:
        stranger.say(*frames)
    stranger.say(header(0, 4), b"good")
    assert bytes(b.receive("stranger", Tag("x"), SOON_S)[0]) == b"good"
    assert b.stats.refused_frames == len(hostile)
    a.send("b", Tag("x"), [b"fine"], SOON_S)
    assert bytes(b.receive("a", Tag("x"), SOON_S)[0]) == b"fine"


def test_a_gap_in_the_sequence_means_the_peer_is_lost(links: tuple[ZmqLink, ZmqLink], stranger: Stranger) -> None:
    _, b = links
    stranger.say(header(0, 1), b"0")
    stranger.say(header(0, 1), b"0")  # repeated: refused
    stranger.say(header(2, 1), b"2")
    assert bytes(b.receive("stranger", Tag("x"), SOON_S)[0]) == b"0"
    with pytest.raises(PeerLost, match="message 1 from it never arrived"):
        b.receive("stranger", Tag("x"), SOON_S)
    assert b.stats.refused_frames == 2


def test_a_small_message_on_an_idle_link_is_quick(links: tuple[ZmqLink, ZmqLink]) -> None:
    a, b = links

    def answer() -> None:
        for number in range(100):
            b.send("a", Tag("pong", number), b.receive("a", Tag("ping", number), SOON_S), SOON_S)

    echo = threading.Thread(target=answer)
    echo.start()
    times = []
    for number in range(100):
        started = time.perf_counter()
        a.send("b", Tag("ping", number), [bytes(1000)], SOON_S)
        a.receive("b", Tag("pong", number), SOON_S)
        times.append(time.perf_counter() - started)
    echo.join(SOON_S)
    assert min(times) < 0.005, f"best round trip {min(times) * 1e3:.1f} ms"


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1"):
        ZmqLink("a", bind=LinkAddress("192.0.2.1"))


def test_the_link_needs_no_torch() -> None:
    code = "import sys, potluck.wire.zmq_link, potluck.wire.control_channel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=SOON_S, check=False).returncode == 0

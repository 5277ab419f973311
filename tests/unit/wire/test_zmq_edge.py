"""One ZeroMQ connection, from the side that sends; the other side is a bare socket here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from potluck.wire.frames import PROTOCOL_VERSION, MessageHeader, decode_header
from potluck.wire.link import Tag
from potluck.wire.zmq_edge import ZmqEdge

SOON_MS = 20_000
Socket = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def router(context: zmq.Context[Socket]) -> Socket:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.RCVTIMEO, SOON_MS)
    router.bind("tcp://127.0.0.1:*")
    return router


@pytest.fixture
def edge(context: zmq.Context[Socket], router: Socket) -> Iterator[ZmqEdge]:
    edge = ZmqEdge(context, "me", 7, router.getsockopt_string(zmq.LAST_ENDPOINT), silence_s=60.0, keys=())
    yield edge
    edge.close()


def connect(edge: ZmqEdge) -> None:
    """Returns once the connection stands and was seen to stand."""
    assert edge.monitor.poll(SOON_MS), "it never connected"
    assert not edge.broken()


def test_what_waits_is_sent_in_order_with_term_and_sequence(edge: ZmqEdge, router: Socket) -> None:
    connect(edge)
    edge.waiting.extend((Tag("data", n), [memoryview(bytes(n)), memoryview(b"end")]) for n in range(3))
    assert edge.flush()
    assert not edge.waiting
    for n in range(3):
        sender, header, *parts = router.recv_multipart()
        assert sender == b"me"
        assert decode_header(header) == MessageHeader(PROTOCOL_VERSION, 7, n, Tag("data", n), (n, 3))
        assert parts == [bytes(n), b"end"]


def test_nothing_is_lost_while_nobody_listens(context: zmq.Context[Socket]) -> None:
    reserved = context.socket(zmq.ROUTER)
    reserved.bind("tcp://127.0.0.1:*")
    address = reserved.getsockopt_string(zmq.LAST_ENDPOINT)
    reserved.unbind(address)
    edge = ZmqEdge(context, "me", 1, address, silence_s=60.0, keys=())
    try:
        edge.waiting.append((Tag("data"), [memoryview(b"x")]))
        assert not edge.flush()
        assert [tag for tag, _ in edge.waiting] == [Tag("data")]
        assert edge.patience_s is not None
        assert 0 < edge.patience_s <= 60.0
    finally:
        edge.close()


def test_patience_ends_when_the_connection_stands(edge: ZmqEdge) -> None:
    connect(edge)
    assert edge.patience_s is None


def test_what_comes_back_is_read_without_waiting(edge: ZmqEdge, router: Socket) -> None:
    connect(edge)
    assert edge.read() == []
    edge.waiting.append((Tag("data"), [memoryview(b"x")]))
    edge.flush()
    sender = router.recv_multipart()[0]
    for credit in (b"one", b"two"):
        router.send_multipart([sender, credit])
    found: list[bytes] = []
    while len(found) < 2:
        assert edge.socket.poll(SOON_MS), "the credits never came"
        found += edge.read()
    assert found == [b"one", b"two"]


def test_a_connection_that_stood_and_closed_is_broken(edge: ZmqEdge, router: Socket) -> None:
    connect(edge)
    router.close(linger=0)
    assert edge.monitor.poll(SOON_MS), "nobody noticed"
    assert edge.broken()


def test_an_address_that_makes_no_sense_is_an_error_and_leaves_no_socket(context: zmq.Context[Socket]) -> None:
    with pytest.raises(zmq.ZMQError) as caught:
        ZmqEdge(context, "me", 1, "nonsense", silence_s=60.0, keys=())
    edge = next(entry.locals["self"] for entry in caught.traceback if isinstance(entry.locals.get("self"), ZmqEdge))
    assert edge.socket.closed
    assert edge.monitor.closed

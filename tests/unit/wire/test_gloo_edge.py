"""One Gloo group of two: what each side of it hands to its mailbox."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from potluck.wire.gloo_edge import GlooEdge
from potluck.wire.link import Tag
from potluck.wire.mailbox import Mailbox
from potluck.wire.pacing import Pacer

SOON_S = 20.0
WINDOW_BYTES = 1000
Side = tuple[GlooEdge, Mailbox]


@pytest.fixture
def meeting() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=SOON_S), wait_for_workers=False)


def side(name: str, peer: str, meeting: TCPStore) -> Side:
    mailbox = Mailbox(name, WINDOW_BYTES)
    mailbox.adopt(3, [peer])
    return GlooEdge(name, peer, 3, f"127.0.0.1:{meeting.port}", "127.0.0.1", mailbox, Pacer(None)), mailbox


@pytest.fixture
def sides(meeting: TCPStore) -> Iterator[tuple[Side, Side]]:
    a, b = side("a", "b", meeting), side("b", "a", meeting)
    yield a, b
    for edge, _ in (a, b):
        edge.abandon()
    for edge, _ in (a, b):
        edge.join()


def test_messages_arrive_in_order_whole_and_with_their_term(sides: tuple[Side, Side]) -> None:
    (a, _), (_, at_b) = sides
    long_tag = Tag("k" * 2000)  # whose header does not fit the first tensor
    a.send(Tag("data", 1), [memoryview(b"one"), memoryview(b""), memoryview(bytearray(b"three"))])
    a.send(long_tag, [])
    first, second = at_b.take("a", Tag("data", 1), SOON_S), at_b.take("a", long_tag, SOON_S)
    assert [bytes(part) for part in first.parts] == [b"one", b"", b"three"]
    assert [(p.header.term, p.header.sequence) for p in (first, second)] == [(3, 0), (3, 1)]
    assert second.parts == []


def test_a_credit_makes_room_in_the_window_of_the_other_side(sides: tuple[Side, Side]) -> None:
    (_, at_a), (b, _) = sides
    at_a.reserve("b", Tag("data"), WINDOW_BYTES, SOON_S)
    b.credit(WINDOW_BYTES)
    assert at_a.reserve("b", Tag("data"), WINDOW_BYTES, SOON_S) == 3


def test_a_side_that_retires_still_takes_in_what_is_on_its_way(sides: tuple[Side, Side]) -> None:
    (a, _), (b, at_b) = sides
    a.send(Tag("first"), [memoryview(b"x")])
    at_b.take("a", Tag("first"), SOON_S)
    b.retire()
    a.send(Tag("late"), [memoryview(b"y")])
    assert bytes(at_b.take("a", Tag("late"), SOON_S).parts[0]) == b"y"


def test_a_side_that_is_abandoned_ends_though_the_other_says_nothing(sides: tuple[Side, Side]) -> None:
    (a, _), (b, at_b) = sides
    a.send(Tag("first"), [memoryview(b"x")])
    at_b.take("a", Tag("first"), SOON_S)
    assert b._receiver.is_alive()
    b.abandon()
    b._receiver.join(SOON_S)
    b._sender.join(SOON_S)
    assert not b._receiver.is_alive()
    assert not b._sender.is_alive()


def test_a_side_whose_peer_never_comes_can_be_retired(meeting: TCPStore) -> None:
    edge, _ = side("a", "b", meeting)
    edge.retire()
    edge.join()
    assert not edge._sender.is_alive()

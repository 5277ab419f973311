"""What every carrier of the link must do, whatever it is made of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from potluck.errors import Cancelled, LinkError, LinkTimeout, PeerLost
from potluck.wire.link import Link, Tag
from tests.process.link_calls import SOON_S, Call, PeerProcess, wait_for

BRIEF_S = 0.3  # a wait that is meant to run out

CARRIERS = ["zmq", "gloo"]
MakeLink = Callable[..., Any]


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_link(carrier: str) -> Iterator[MakeLink]:
    """Makes links that are closed after the test."""
    links: list[Link] = []

    def make(name: str, **options: Any) -> Link:
        if carrier == "zmq":
            from potluck.wire.zmq_link import ZmqLink

            links.append(ZmqLink(name, **options))
        else:
            from potluck.wire.gloo_link import GlooLink

            links.append(GlooLink(name, **options))
        return links[-1]

    yield make
    for link in links:
        link.close()


@pytest.fixture
def peer_process(carrier: str) -> Iterator[PeerProcess]:
    peer = PeerProcess(carrier, "far")
    yield peer
    peer.clean_up()


def adopt_all(term: int, **links: Link) -> None:
    """Every link adopts the term with all the others as peers."""
    for name, link in links.items():
        link.adopt(term, {other: links[other].address for other in links if other != name})


@pytest.fixture
def pair(make_link: MakeLink) -> tuple[Link, Link]:
    """Two links, a and b, that know each other; the window is one million bytes."""
    a, b = make_link("a", window_bytes=1_000_000), make_link("b", window_bytes=1_000_000)
    adopt_all(1, a=a, b=b)
    return a, b


def greet(a: Link, b: Link) -> None:
    """Pass a message both ways: after this the connection stands."""
    for sender, receiver, sender_name, receiver_name in ((a, b, "a", "b"), (b, a, "b", "a")):
        sender.send(receiver_name, Tag("hello"), [b"hello"], SOON_S)
        assert bytes(receiver.receive(sender_name, Tag("hello"), SOON_S)[0]) == b"hello"


# --- delivery


def test_parts_of_any_size_arrive_whole_without_saying_sizes_first(make_link: MakeLink) -> None:
    a, b = make_link("a"), make_link("b")
    adopt_all(1, a=a, b=b)
    messages: list[list[bytes | bytearray]] = [
        [],
        [b""],
        [b"x"],
        [os.urandom(1000), b"", os.urandom(70_000)],
        [os.urandom(20_000_000), bytearray(os.urandom(65_536))],
        [bytes([n % 256]) * n for n in range(300)],
    ]
    for index, parts in enumerate(messages):
        a.send("b", Tag("data", round=index), parts, SOON_S)
    for index, parts in enumerate(messages):
        received = b.receive("a", Tag("data", round=index), SOON_S)
        assert [bytes(part) for part in received] == [bytes(part) for part in parts]
        assert all(not part.readonly and part.format == "B" for part in received)
    total = sum(len(part) for parts in messages for part in parts)
    assert (a.stats.frames_sent, a.stats.bytes_sent) == (len(messages), total)
    assert (b.stats.frames_received, b.stats.bytes_received) == (len(messages), total)


def test_views_of_typed_memory_are_sent_as_their_bytes(pair: tuple[Link, Link]) -> None:
    a, b = pair
    floats = memoryview(bytearray(16)).cast("d", (2, 1))
    a.send("b", Tag("floats"), [floats, memoryview(b"")], SOON_S)  # type: ignore[list-item]
    assert [bytes(part) for part in b.receive("a", Tag("floats"), SOON_S)] == [bytes(16), b""]


def test_messages_can_be_received_in_another_order_than_sent(pair: tuple[Link, Link]) -> None:
    a, b = pair
    tags = [Tag("forward", round=3, micro_batch=m, key=k, part=p) for m in range(3) for k in range(2) for p in range(2)]
    for index, tag in enumerate(tags):
        a.send("b", tag, [bytes([index])], SOON_S)
    for index, tag in reversed(list(enumerate(tags))):
        assert bytes(b.receive("a", tag, SOON_S)[0]) == bytes([index])


def test_the_same_tag_twice_is_first_in_first_out(pair: tuple[Link, Link]) -> None:
    a, b = pair
    for content in (b"first", b"second", b"third"):
        a.send("b", Tag("same"), [content], SOON_S)
    assert [bytes(b.receive("a", Tag("same"), SOON_S)[0]) for _ in range(3)] == [b"first", b"second", b"third"]


def test_one_can_ask_whether_a_message_is_there_without_waiting(pair: tuple[Link, Link]) -> None:
    a, b = pair
    greet(a, b)
    assert not b.arrived("a", Tag("later"))
    a.send("b", Tag("later"), [b"x"], SOON_S)
    wait_for(lambda: b.arrived("a", Tag("later")))
    assert bytes(b.receive("a", Tag("later"), BRIEF_S)[0]) == b"x"
    assert not b.arrived("a", Tag("later"))


def test_both_directions_and_three_devices_at_once(make_link: MakeLink) -> None:
    links = {name: make_link(name) for name in ("a", "b", "c")}
    adopt_all(1, **links)

    def work(name: str) -> None:
        others = [other for other in links if other != name]
        for number in range(20):
            for other in others:
                links[name].send(other, Tag(name, number), [f"{name}{other}{number}".encode(), bytes(100_000)], SOON_S)
        for number in range(20):
            for other in others:
                parts = links[name].receive(other, Tag(other, number), SOON_S)
                assert bytes(parts[0]) == f"{other}{name}{number}".encode()

    calls = [Call(lambda name=name: work(name)) for name in links]  # type: ignore[misc]
    assert [call.end() for call in calls] == [None, None, None]


def test_an_unknown_peer_is_refused_at_once(pair: tuple[Link, Link]) -> None:
    a, _ = pair
    with pytest.raises(LinkError, match="nobody is no peer of term 1"):
        a.send("nobody", Tag("x"), [b"x"], SOON_S)


# --- back-pressure


def test_a_sender_blocks_at_the_window_and_goes_on_when_the_peer_consumes(pair: tuple[Link, Link]) -> None:
    a, b = pair
    a.send("b", Tag("data", 0), [bytes(600_000)], SOON_S)
    a.send("b", Tag("data", 1), [bytes(400_000)], SOON_S)
    with pytest.raises(LinkTimeout):
        a.send("b", Tag("data", 2), [bytes(1)], BRIEF_S)
    blocked = Call(lambda: a.send("b", Tag("data", 2), [bytes(600_000)], SOON_S))
    blocked.wait_until_blocked()
    assert b.receive("a", Tag("data", 0), SOON_S)[0].nbytes == 600_000
    assert blocked.end() is None
    assert b.receive("a", Tag("data", 2), SOON_S)[0].nbytes == 600_000


def test_a_message_bigger_than_the_window_goes_alone(pair: tuple[Link, Link]) -> None:
    a, b = pair
    a.send("b", Tag("big"), [bytes(3_000_000)], SOON_S)
    with pytest.raises(LinkTimeout):
        a.send("b", Tag("more"), [b"x"], BRIEF_S)
    assert b.receive("a", Tag("big"), SOON_S)[0].nbytes == 3_000_000
    a.send("b", Tag("more"), [b"x"], SOON_S)
    assert bytes(b.receive("a", Tag("more"), SOON_S)[0]) == b"x"


def test_a_peer_that_stops_reading_hurts_nobody_else(make_link: MakeLink) -> None:
    links = {name: make_link(name, window_bytes=1_000_000) for name in ("a", "b", "c")}
    adopt_all(1, **links)
    a, c = links["a"], links["c"]
    a.send("b", Tag("data"), [bytes(1_000_000)], SOON_S)
    with pytest.raises(LinkTimeout, match=r"peer b, sending data \(round 7.*0\.[3-9] s"):
        a.send("b", Tag("data", 7), [b"x"], BRIEF_S)
    for number in range(5):
        a.send("c", Tag("data", number), [bytes(900_000)], SOON_S)
        assert c.receive("a", Tag("data", number), SOON_S)[0].nbytes == 900_000


def test_a_limited_link_takes_its_time_and_does_not_hold_the_sender(make_link: MakeLink) -> None:
    a, b = make_link("a", bandwidth_bytes_s=10e6), make_link("b")
    adopt_all(1, a=a, b=b)
    greet(a, b)
    started = time.monotonic()
    a.send("b", Tag("data", 0), [bytes(2_000_000)], SOON_S)
    a.send("b", Tag("data", 1), [bytes(2_000_000)], SOON_S)
    queued_s = time.monotonic() - started
    b.receive("a", Tag("data", 0), SOON_S)
    first_s = time.monotonic() - started
    b.receive("a", Tag("data", 1), SOON_S)
    second_s = time.monotonic() - started
    assert queued_s < 0.15
    assert 0.2 <= first_s < 0.39
    assert 0.4 <= second_s < 0.8


# --- time-outs, cancelling, closing


def test_a_receive_that_runs_out_names_peer_tag_and_seconds(pair: tuple[Link, Link]) -> None:
    a, _ = pair
    with pytest.raises(LinkTimeout, match=r"peer b, waiting for loss \(round 4.*after 0\.[3-9] s"):
        a.receive("b", Tag("loss", 4), BRIEF_S)


def test_a_peer_that_has_not_started_is_waited_for(make_link: MakeLink) -> None:
    a, gone = make_link("a"), make_link("b")
    gone.close()
    a.adopt(1, {"b": gone.address})
    a.send("b", Tag("early"), [b"x"], SOON_S)
    with pytest.raises(LinkTimeout):
        a.receive("b", Tag("x"), BRIEF_S)


def test_a_message_sent_before_the_peer_adopts_waits_for_it(make_link: MakeLink) -> None:
    a, b = make_link("a"), make_link("b")
    a.adopt(1, {"b": b.address})
    a.send("b", Tag("early"), [b"x"], SOON_S)
    b.adopt(1, {"a": a.address})
    assert bytes(b.receive("a", Tag("early"), SOON_S)[0]) == b"x"


def test_cancel_wakes_a_blocked_receive_and_send_until_the_next_term(pair: tuple[Link, Link]) -> None:
    a, b = pair
    a.send("b", Tag("data"), [bytes(1_000_000)], SOON_S)
    calls = [
        Call(lambda: a.receive("b", Tag("never"), SOON_S)),
        Call(lambda: a.send("b", Tag("data"), [b"x"], SOON_S)),
    ]
    for call in calls:
        call.wait_until_blocked()
    started = time.monotonic()
    a.cancel("the round was aborted")
    for call in calls:
        assert isinstance(call.end(), Cancelled)
        assert "the round was aborted" in str(call.error)
    assert time.monotonic() - started < 1.0
    with pytest.raises(Cancelled):
        a.receive("b", Tag("never"), SOON_S)
    adopt_all(2, a=a, b=b)
    greet(a, b)


def test_adopting_a_term_ends_calls_of_the_old_one(pair: tuple[Link, Link]) -> None:
    a, b = pair
    call = Call(lambda: a.receive("b", Tag("never"), SOON_S))
    call.wait_until_blocked()
    a.adopt(2, {"b": b.address})
    assert isinstance(call.end(), Cancelled)
    with pytest.raises(ValueError, match="not above term 2"):
        a.adopt(2, {"b": b.address})


def test_close_ends_blocked_calls_and_can_be_repeated(pair: tuple[Link, Link]) -> None:
    a, _ = pair
    call = Call(lambda: a.receive("b", Tag("never"), SOON_S))
    call.wait_until_blocked()
    a.close()
    a.close()
    assert isinstance(call.end(), Cancelled)


# --- terms


def test_messages_of_an_older_term_are_dropped_and_counted(pair: tuple[Link, Link]) -> None:
    a, b = pair
    greet(a, b)
    a.send("b", Tag("unread"), [b"old"], SOON_S)
    wait_for(lambda: b.stats.frames_received == 2)
    b.adopt(2, {"a": a.address})
    assert b.stats.stale_frames == 1
    a.send("b", Tag("data"), [b"old"], SOON_S)
    wait_for(lambda: b.stats.stale_frames == 2)
    a.adopt(2, {"b": b.address})
    a.send("b", Tag("data"), [b"new"], SOON_S)
    assert bytes(b.receive("a", Tag("data"), SOON_S)[0]) == b"new"


def test_messages_of_a_newer_term_are_kept_until_it_is_adopted(make_link: MakeLink) -> None:
    links = {name: make_link(name) for name in ("a", "b", "c")}
    a, b, c = links.values()
    adopt_all(1, **links)
    greet(a, b)
    a.adopt(2, {"b": b.address})
    a.send("b", Tag("data"), [b"of term 2"], SOON_S)
    c.send("b", Tag("data"), [b"of term 1"], SOON_S)
    assert bytes(b.receive("c", Tag("data"), SOON_S)[0]) == b"of term 1"
    with pytest.raises(LinkTimeout):
        b.receive("a", Tag("data"), BRIEF_S)
    b.adopt(2, {"a": a.address})
    assert bytes(b.receive("a", Tag("data"), SOON_S)[0]) == b"of term 2"
    assert b.stats.stale_frames == 0


def test_unconsumed_bytes_of_an_older_term_do_not_fill_the_window(pair: tuple[Link, Link]) -> None:
    a, b = pair
    for term in range(2, 6):
        a.send("b", Tag("data"), [bytes(1_000_000)], SOON_S)
        adopt_all(term, a=a, b=b)
    greet(a, b)


# --- peers that die or freeze


def test_a_killed_peer_is_lost_at_once(carrier: str, make_link: MakeLink, peer_process: PeerProcess) -> None:
    near = make_link("near", window_bytes=1_000_000)
    near.adopt(1, {"far": peer_process.address})
    peer_process.order(do="adopt", term=1, peers={"near": near.address})
    for _ in range(2):
        peer_process.order(do="send", peer="near", kind="last words", size=10)
    near.send("far", Tag("data"), [bytes(1_000_000)], SOON_S)
    wait_for(lambda: near.stats.frames_received == 2)
    calls = [
        Call(lambda: near.receive("far", Tag("never"), SOON_S)),
        Call(lambda: near.send("far", Tag("data"), [b"x"], SOON_S)),
    ]
    for call in calls:
        call.wait_until_blocked()
    started = time.monotonic()
    peer_process.kill()
    for call in calls:
        assert isinstance(call.end(), PeerLost), call.error
        assert "far" in str(call.error)
    assert time.monotonic() - started < 2.0
    for _ in range(2):  # what arrived before is not lost
        assert near.receive("far", Tag("last words"), SOON_S)[0].nbytes == 10
    with pytest.raises(PeerLost):
        near.receive("far", Tag("last words"), SOON_S)


def test_a_stopped_peer_ends_calls_by_their_deadline_and_hurts_nobody_else(
    carrier: str, make_link: MakeLink, peer_process: PeerProcess
) -> None:
    patience = {"silence_s": 2.0} if carrier == "zmq" else {}
    near, other = make_link("near", window_bytes=1_000_000, **patience), make_link("other", window_bytes=1_000_000)
    near.adopt(1, {"far": peer_process.address, "other": other.address})
    other.adopt(1, {"near": near.address})
    peer_process.order(do="adopt", term=1, peers={"near": near.address})
    near.send("far", Tag("hello"), [b"x"], SOON_S)
    assert peer_process.order(do="receive", peer="near", kind="hello") == [1]
    peer_process.stop()
    started = time.monotonic()
    near.send("far", Tag("data"), [bytes(900_000)], SOON_S)
    calls = [
        Call(lambda: near.receive("far", Tag("never"), 3.0)),
        Call(lambda: near.send("far", Tag("data"), [bytes(200_000)], 3.0)),
    ]
    for number in range(5):
        near.send("other", Tag("data", number), [bytes(900_000)], SOON_S)
        assert other.receive("near", Tag("data", number), SOON_S)[0].nbytes == 900_000
    for call in calls:
        # Gloo has no heartbeats: to it, a stopped peer is a slow one.
        assert isinstance(call.end(), PeerLost if carrier == "zmq" else LinkTimeout), call.error
    assert time.monotonic() - started < 4.0
    near.adopt(2, {"other": other.address})
    other.adopt(2, {"near": near.address})
    near.send("other", Tag("after"), [b"x"], SOON_S)
    assert bytes(other.receive("near", Tag("after"), SOON_S)[0]) == b"x"

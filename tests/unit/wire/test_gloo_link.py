"""What a Gloo link does of its own; what every link does is in tests/process/test_link_conformance.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from potluck.errors import Cancelled, InputError, LinkError, PeerLost
from potluck.wire.gloo_link import GlooLink
from potluck.wire.link import Tag

SOON_S = 20.0


@pytest.fixture
def links() -> Iterator[tuple[GlooLink, GlooLink]]:
    a, b = GlooLink("a", window_bytes=1000), GlooLink("b", window_bytes=1000)
    yield a, b
    a.close()
    b.close()


def test_an_address_of_another_machine_is_refused_in_a_line() -> None:
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1 .*give an address of this machine"):
        GlooLink("a", bind="192.0.2.1")


def test_both_find_the_same_meeting_whichever_has_the_smaller_name(links: tuple[GlooLink, GlooLink]) -> None:
    a, b = links
    b.adopt(1, {"a": a.address})
    a.adopt(1, {"b": b.address})
    assert a._edges["b"]._meeting == b._edges["a"]._meeting == a.address


def test_a_read_only_buffer_is_sent_as_it_is_and_consuming_it_makes_room(links: tuple[GlooLink, GlooLink]) -> None:
    a, b = links
    a.adopt(1, {})
    a.meet("b", b.address)
    b.adopt(1, {"a": a.address})
    for number in range(3):  # three times the window
        a.send("b", Tag("data", number), [bytes([number]) * 1000], SOON_S)
        assert bytes(b.receive("a", Tag("data", number), SOON_S)[0]) == bytes([number]) * 1000
    assert a.stats.bytes_sent == b.stats.bytes_received == 3000


def test_what_is_for_a_term_that_is_over_goes_nowhere(links: tuple[GlooLink, GlooLink]) -> None:
    a, b = links
    for term in (1, 2):
        a.adopt(term, {"b": b.address})
    assert a.term == 2
    with pytest.raises(Cancelled):
        a.send("b", Tag("data"), [b"x"], SOON_S, term=1)


def test_a_peer_that_is_forgotten_is_none_any_more(links: tuple[GlooLink, GlooLink]) -> None:
    a, b = links
    a.adopt(1, {"b": b.address})
    a.forget("b")
    with pytest.raises((PeerLost, LinkError)):
        a.send("b", Tag("data"), [b"x"], SOON_S)
    assert "b" not in a._edges

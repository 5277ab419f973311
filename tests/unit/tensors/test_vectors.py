"""Vectors over a link: whole or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from potluck.errors import LinkError
from potluck.tensors.vectors import receive_vector, send_vector
from potluck.wire.link import Buffer, Tag
from potluck.wire.zmq_link import ZmqLink

SIZE = 600_000  # three pieces


@pytest.fixture
def links() -> Iterator[tuple[ZmqLink, ZmqLink]]:
    a, b = ZmqLink("a"), ZmqLink("b/1")
    a.adopt(1, {})
    a.meet("b/1", b.address)
    b.adopt(1, {"a": a.address})
    yield a, b
    a.close()
    b.close()


class Damaging:
    """A link on which one byte of one piece changes."""

    def __init__(self, link: ZmqLink) -> None:
        self._link = link

    def send(self, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None) -> None:
        if tag.micro_batch == 2:
            parts = [bytes([parts[0][0] ^ 1]) + bytes(parts[0][1:])]
        self._link.send(peer, tag, parts, timeout_s, term)


def test_a_vector_arrives_as_it_was_with_its_words(links: tuple[ZmqLink, ZmqLink]) -> None:
    vector = torch.randn(SIZE)
    send_vector(links[1], "a", "push", 1, b"words", vector, 10.0)
    send_vector(links[0], "b/1", "pull", 1, b"answer", None, 10.0)
    words, arrived = receive_vector(links[0], "b/1", "push", 1, torch.float32, SIZE, 10.0)
    assert words == b"words"
    assert arrived is not None
    assert torch.equal(arrived, vector)
    assert receive_vector(links[1], "a", "pull", 1, torch.float32, SIZE, 10.0) == (b"answer", None)


def test_one_that_was_damaged_or_is_of_another_model_is_refused(links: tuple[ZmqLink, ZmqLink]) -> None:
    send_vector(Damaging(links[1]), "a", "push", 1, b"", torch.randn(SIZE), 10.0)  # type: ignore[arg-type]
    with pytest.raises(LinkError, match="is not what was sent"):
        receive_vector(links[0], "b/1", "push", 1, torch.float32, SIZE, 10.0)
    send_vector(links[1], "a", "push", 2, b"", torch.randn(SIZE), 10.0)
    with pytest.raises(LinkError, match="not a vector of 5"):
        receive_vector(links[0], "b/1", "push", 2, torch.float32, 5, 10.0)


def test_who_was_forgotten_is_not_heard_any_more(links: tuple[ZmqLink, ZmqLink]) -> None:
    a, b = links
    a.forget("b/1")
    b.send("a", Tag("push", 1), [b"late"], 10.0)
    with pytest.raises(LinkError, match="no peer"):
        a.receive("b/1", Tag("push", 1), 5.0)

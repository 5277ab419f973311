"""What is kept of messages that come before their term: enough for a peer that is ahead, bounded for everybody else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import Cancelled, LinkTimeout
from potluck.wire.frames import PROTOCOL_VERSION, MessageHeader
from potluck.wire.link import Tag
from potluck.wire.mailbox import MAX_EARLY_MESSAGES, MAX_EARLY_WINDOWS, Mailbox

WINDOW_BYTES = 1000


def deliver(box: Mailbox, peer: str, size_bytes: int, sequence: int = 0, term: int = 1) -> None:
    header = MessageHeader(PROTOCOL_VERSION, term, sequence, Tag("x", sequence), (size_bytes,))
    box.deliver(peer, header, [memoryview(bytes(size_bytes))])


def kept_bytes(box: Mailbox) -> int:
    return sum(parcel.size_bytes for early in box._early.values() for parcel in early.parcels)


def test_many_strangers_together_fill_a_few_windows_and_the_rest_is_counted() -> None:
    box = Mailbox("me", WINDOW_BYTES)
    for stranger in range(100):
        deliver(box, f"stranger{stranger}", WINDOW_BYTES)
    assert kept_bytes(box) == MAX_EARLY_WINDOWS * WINDOW_BYTES
    assert box.stats.refused_frames == 100 - MAX_EARLY_WINDOWS


def test_a_first_message_larger_than_everything_is_kept_once() -> None:
    box = Mailbox("me", WINDOW_BYTES)
    large = 2 * MAX_EARLY_WINDOWS * WINDOW_BYTES
    deliver(box, "coordinator", large)
    deliver(box, "stranger", large)
    assert kept_bytes(box) == large
    box.adopt(1, ["coordinator"])
    assert box.take("coordinator", Tag("x", 0), 1.0).size_bytes == large


def test_empty_messages_are_bounded_by_their_number() -> None:
    box = Mailbox("me", WINDOW_BYTES)
    for sequence in range(MAX_EARLY_MESSAGES + 10):
        deliver(box, "stranger", 0, sequence)
    assert box.stats.refused_frames == 10


def test_a_newer_term_makes_room() -> None:
    box = Mailbox("me", WINDOW_BYTES)
    for peer in range(MAX_EARLY_WINDOWS):
        deliver(box, f"peer{peer}", WINDOW_BYTES)
    deliver(box, "peer0", WINDOW_BYTES, term=2)
    assert box.stats.refused_frames == 0
    assert box.stats.stale_frames == 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3_000_000), max_size=40), st.integers(0, 5_000_000))
def test_whoever_has_consumed_everything_leaves_room_for_any_message(sizes: list[int], last: int) -> None:
    sender, receiver = Mailbox("a", 1_600_000), Mailbox("b", 1_600_000)
    sender.adopt(1, ["b"])
    receiver.adopt(1, ["a"])
    credits = 0
    for size in [*sizes, last]:
        sender.reserve("b", Tag("data"), size, 0.0)
        due = receiver.consumed("a", 1, size)
        if due:
            credits += 1
            sender.credit("b", 1, due)
    assert credits <= sum(sizes) / 100_000 + last / 100_000


def test_what_is_not_consumed_fills_the_window() -> None:
    sender = Mailbox("a", 1_600_000)
    sender.adopt(1, ["b"])
    sender.reserve("b", Tag("data"), 1_000_000, 0.0)
    with pytest.raises(LinkTimeout, match="sending data"):
        sender.reserve("b", Tag("data"), 700_000, 0.0)
    sender.credit("b", 1, 950_000)  # what is left is less than a credit
    sender.reserve("b", Tag("data"), 1_700_000, 0.0)


def test_what_belongs_to_a_term_ends_with_it() -> None:
    box = Mailbox("me", WINDOW_BYTES)
    box.adopt(1, ["peer"])
    assert box.reserve("peer", Tag("x"), 10, 1.0, 1) == 1
    box.adopt(2, ["peer"])
    with pytest.raises(Cancelled, match="term 1 is over"):
        box.reserve("peer", Tag("x"), 10, 1.0, 1)
    with pytest.raises(Cancelled, match="term 1 is over"):
        box.take("peer", Tag("x"), 1.0, 1)

"""The link: tagged messages of raw bytes between devices. Two carriers keep this promise: ZeroMQ and Gloo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview

# Under way to one peer, unless a plan says what it needs: half a second of a line of 1 Gbit/s.
DEFAULT_WINDOW_BYTES = 64 * 2**20


class Tag(msgspec.Struct, frozen=True, array_like=True):
    """What a message is; the receiver asks for it by this."""

    kind: str
    round: int = 0
    micro_batch: int = 0
    key: int = 0
    part: int = 0

    def __str__(self) -> str:
        """The tag in words, for error messages."""
        return f"{self.kind} (round {self.round}, micro-batch {self.micro_batch}, key {self.key}, part {self.part})"


@dataclass
class LinkStats:
    """What went over a link since it was made, credits not counted. One frame is one message."""

    frames_sent: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    stale_frames: int = 0  # of a term that is over
    refused_frames: int = 0  # malformed, from a stranger, repeated, or too many for a term not yet adopted


class Link(Protocol):
    """One device's end of its connections to its peers.

    `send` and `receive` belong to a few compute threads, `cancel` to any thread; `adopt`, `meet`, `forget` and `close`
    to the thread that runs the device. The errors name the peer, the tag and the seconds waited.
    """

    @property
    def stats(self) -> LinkStats:
        """What went over it so far; at any time."""

    @property
    def address(self) -> str:
        """Where peers reach this link; known from the start."""

    def adopt(self, term: int, peers: Mapping[str, str], window_bytes: int | None = None) -> None:
        """Connect to these peers (name → address) under a term above the last one. First of all, and at every new plan.

        Returns at once; a peer need not be there yet. Calls still blocked end with `Cancelled`, an earlier `cancel` is
        over, messages of older terms are dropped and counted, and those of this term that came early are delivered. A
        plan that needs more room than the window has (`plan/schedule/under_way.py`, backlog) says so in
        `window_bytes`.
        """

    def meet(self, peer: str, address: str) -> None:
        """Connect to one more peer under the term in force. After `adopt`; one that comes back needs another name."""

    def forget(self, peer: str) -> None:
        """Let go of a peer; who waits for it is told, and what comes from it later is refused. After `adopt`."""

    @property
    def term(self) -> int:
        """The one that was adopted last; below 0 before the first."""

    def send(self, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None) -> None:
        """Queue a message. After `adopt`; the buffers must not change until the peer has them (nothing is copied).

        Returns at once while what the peer has not consumed, this message included, fits the window (a bigger message
        may go alone); else waits for the peer. Raises LinkTimeout, PeerLost or Cancelled: also where a `term` is named
        and another one is in force.
        """

    def receive(self, peer: str, tag: Tag, timeout_s: float, term: int | None = None) -> list[memoryview]:
        """The parts of the oldest message with this tag from this peer, in memory that is the caller's. After `adopt`.

        The memory is writable and aligned to 8 bytes. Raises LinkTimeout, PeerLost or Cancelled.
        """

    def arrived(self, peer: str, tag: Tag) -> bool:
        """Whether `receive` would return at once. After `adopt`."""

    def cancel(self, reason: str) -> None:
        """End every blocked and later send and receive with `Cancelled`, until the next `adopt`. At any time."""

    def close(self) -> None:
        """Let go of the sockets; what was not delivered is dropped. At the end; more than once does no harm."""

"""What both carriers share: messages by peer and tag, byte credits, terms, loss and cancelling. Any thread may call."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from potluck.errors import Cancelled, LinkError, LinkTimeout, PeerLost
from potluck.wire.frames import MessageHeader
from potluck.wire.link import LinkStats, Tag
from potluck.wire.pacing import Pacer
from potluck.wire.trust import Trust

T = TypeVar("T")


# What is kept of a term not yet adopted, of all peers together: anybody can send it.
MAX_EARLY_PEERS = 1024
MAX_EARLY_MESSAGES = 4096  # many times what devices send before a term begins
MAX_EARLY_WINDOWS = 8  # of memory for them: inputs of the first rounds fit

# Part of the usual window that is consumed before the sender is told: a credit costs both sides as much as a small
# message. Both ends of a link have the same usual window, so they agree.
CREDITS_IN_A_WINDOW = 16


@dataclass(frozen=True)
class Parcel:
    """A message that arrived."""

    header: MessageHeader
    parts: list[memoryview]
    size_bytes: int


@dataclass
class _Peer:
    outstanding_bytes: int = 0  # sent, not yet known to be consumed there
    uncredited_bytes: int = 0  # consumed here, and the sender does not know yet
    expected: int = 0  # sequence of the next message from there
    lost: str | None = None
    parcels: dict[Tag, deque[Parcel]] = field(default_factory=dict)


@dataclass
class _Early:
    """Messages of one newer term from one peer, kept until it is adopted."""

    term: int
    size_bytes: int = 0
    parcels: list[Parcel] = field(default_factory=list)


@dataclass
class _Waiter:
    """A thread that waits for a message, or for room to send one (no tag). It is woken for nothing else."""

    peer: str
    tag: Tag | None
    woken: threading.Condition


class Mailbox:
    """The state of a link without its sockets: the carrier delivers into it, compute threads wait on it."""

    def __init__(self, name: str, window_bytes: int) -> None:
        self.stats = LinkStats()
        self.term = -1
        self._name = name
        self._window_bytes = self._least_window_bytes = window_bytes
        self._credit_bytes = window_bytes // CREDITS_IN_A_WINDOW
        self._lock = threading.Lock()
        self._waiting: dict[object, _Waiter] = {}
        self._peers: dict[str, _Peer] = {}
        self._early: dict[str, _Early] = {}
        self._cancelled: str | None = None
        self._closed = False

    # --- the device's side

    def adopt(self, term: int, peers: Iterable[str], window_bytes: int | None = None) -> None:
        """Start a term: fresh peers, early messages of this term delivered, older ones dropped."""
        with self._lock:
            if self._closed:
                raise LinkError(f"link {self._name} is closed; make a new one")
            if term <= self.term:
                raise ValueError(f"link {self._name}: term {term} is not above term {self.term} in force")
            left = sum(len(queue) for peer in self._peers.values() for queue in peer.parcels.values())
            self.stats.stale_frames += left
            self.term = term
            self._cancelled = None
            # What a plan needs, and what credits that are not yet sent may take of it.
            self._window_bytes = max(self._least_window_bytes, (window_bytes or 0) + self._credit_bytes)
            self._peers = {peer: _Peer() for peer in peers}
            early, self._early = self._early, {}
            for peer, kept in early.items():
                for parcel in kept.parcels:
                    self._sort(peer, parcel)
            self._wake()

    def meet(self, peer: str) -> None:
        with self._lock:
            self._peers[peer] = _Peer()

    def forget(self, peer: str) -> None:
        with self._lock:
            self._peers.pop(peer, None)
            self._wake(peer)

    def reserve(self, peer: str, tag: Tag, size_bytes: int, timeout_s: float, term: int | None = None) -> int:
        """Wait until the window has room for this message and count it as sent; returns its term."""

        def room(state: _Peer) -> int | None:
            if state.lost is not None:
                raise self._lost(peer, state.lost, f"sending {tag} to it")
            # Below a credit, all may have been consumed, and nothing more would come.
            if (
                state.outstanding_bytes >= self._credit_bytes
                and state.outstanding_bytes + size_bytes > self._window_bytes
            ):
                return None
            state.outstanding_bytes += size_bytes
            self.stats.frames_sent += 1
            self.stats.bytes_sent += size_bytes
            return self.term

        return self._wait(peer, None, lambda: f"sending {tag} to it", timeout_s, room, term)

    def take(self, peer: str, tag: Tag, timeout_s: float, term: int | None = None) -> Parcel:
        """Wait for the oldest message with this tag from this peer, and remove it."""

        def oldest(state: _Peer) -> Parcel | None:
            queue = state.parcels.get(tag)
            if queue is None:
                return None
            parcel = queue.popleft()
            if not queue:
                del state.parcels[tag]
            return parcel

        return self._wait(peer, tag, lambda: f"waiting for {tag} from it", timeout_s, oldest, term)

    def holds(self, peer: str, tag: Tag) -> bool:
        with self._lock:
            state = self._peers.get(peer)
            return state is not None and tag in state.parcels

    def consumed(self, peer: str, term: int, size_bytes: int) -> int:
        """Counts what was consumed; returns the bytes to tell its sender of now, 0 while that is not worth it."""
        with self._lock:
            state = self._peers.get(peer)
            if term != self.term or state is None:
                return 0
            state.uncredited_bytes += size_bytes
            if state.uncredited_bytes < self._credit_bytes:
                return 0
            due, state.uncredited_bytes = state.uncredited_bytes, 0
            return due

    def cancel(self, reason: str) -> None:
        """End every wait, until the next `adopt`."""
        with self._lock:
            self._cancelled = reason
            self._wake()

    def close(self) -> None:
        """End every wait for good; what was not taken is dropped."""
        with self._lock:
            self._closed = True
            self._cancelled = "the link was closed"
            self._peers.clear()
            self._early.clear()
            self._wake()

    # --- the carrier's side

    def deliver(self, peer: str, header: MessageHeader, parts: list[memoryview]) -> None:
        """Put a message that arrived where `take` finds it."""
        parcel = Parcel(header, parts, sum(part.nbytes for part in parts))
        with self._lock:
            if not self._closed:
                for_whom = (header.tag,) if self._sort(peer, parcel) else ()
                self._wake(peer, *for_whom)

    def refuse(self) -> None:
        """Count a frame that cannot be read."""
        with self._lock:
            self.stats.refused_frames += 1

    def credit(self, peer: str, term: int, consumed_bytes: int) -> None:
        """Give room in the window back: the peer consumed this much."""
        with self._lock:
            state = self._peers.get(peer)
            if term == self.term and state is not None:
                state.outstanding_bytes = max(0, state.outstanding_bytes - max(0, consumed_bytes))
                self._wake(peer, None)

    def lose(self, peer: str, term: int, why: str) -> None:
        """Mark a peer as gone for the rest of the term; messages that already arrived can still be taken."""
        with self._lock:
            state = self._peers.get(peer)
            if term == self.term and state is not None and state.lost is None:
                state.lost = why
                self._wake(peer)

    # --- inside, with the lock held

    def _wake(self, peer: str | None = None, *only: Tag | None) -> None:
        """Those who wait for a peer, or for any; if `only` is given, for these tags, or for room to send one (None)."""
        for waiter in self._waiting.values():
            if peer in (None, waiter.peer) and (not only or waiter.tag in only):
                waiter.woken.notify()

    def _sort(self, peer: str, parcel: Parcel) -> bool:
        """Puts a message where it belongs; whether somebody may take it now."""
        term = parcel.header.term
        state = self._peers.get(peer)
        if term < self.term:
            self.stats.stale_frames += 1
        elif term > self.term:
            self._keep_early(peer, parcel)
        elif state is None or parcel.header.sequence < state.expected:
            self.stats.refused_frames += 1
        elif parcel.header.sequence > state.expected:
            state.lost = state.lost or f"message {state.expected} from it never arrived"
            self.stats.refused_frames += 1
        else:
            state.expected += 1
            state.parcels.setdefault(parcel.header.tag, deque()).append(parcel)
            self.stats.frames_received += 1
            self.stats.bytes_received += parcel.size_bytes
            return True
        return False

    def _keep_early(self, peer: str, parcel: Parcel) -> None:
        kept = self._early.get(peer)
        if kept is None and len(self._early) >= MAX_EARLY_PEERS:
            self.stats.refused_frames += 1
            return
        if kept is None or kept.term < parcel.header.term:
            # The peer has left its earlier term: nobody will ever ask for those.
            self.stats.stale_frames += len(kept.parcels) if kept else 0
            kept = self._early[peer] = _Early(parcel.header.term)
        if kept.term > parcel.header.term:
            self.stats.stale_frames += 1
        elif not self._fits_early(kept, parcel):
            self.stats.refused_frames += 1
        else:
            kept.parcels.append(parcel)
            kept.size_bytes += parcel.size_bytes

    def _fits_early(self, kept: _Early, parcel: Parcel) -> bool:
        """Whether there is room for one more early message; a peer's first may be larger than its window."""
        messages = sum(len(early.parcels) for early in self._early.values())
        size_bytes = sum(early.size_bytes for early in self._early.values())
        if messages >= MAX_EARLY_MESSAGES or size_bytes >= MAX_EARLY_WINDOWS * self._window_bytes:
            return False
        return not kept.parcels or kept.size_bytes + parcel.size_bytes <= self._window_bytes

    def _wait(
        self, peer: str, tag: Tag | None, doing: Callable[[], str], timeout_s: float,
        attempt: Callable[[_Peer], T | None], term: int | None,
    ) -> T:  # fmt: skip
        started, me = time.monotonic(), object()
        with self._lock:
            term = self.term if term is None else term
            while True:
                if self._cancelled is not None:
                    raise Cancelled(f"link {self._name}, peer {peer}, {doing()}: {self._cancelled}")
                if self.term != term:
                    raise Cancelled(f"link {self._name}, peer {peer}, {doing()}: term {term} is over")
                state = self._peers.get(peer)
                if state is None:
                    raise LinkError(f"link {self._name}: {peer} is no peer of term {term}; adopt a plan that has it")
                result = attempt(state)
                if result is not None:
                    return result
                if state.lost is not None:
                    raise self._lost(peer, state.lost, doing())
                waited = time.monotonic() - started
                if waited >= timeout_s:
                    raise LinkTimeout(
                        f"link {self._name}, peer {peer}, {doing()}: {self._stuck(state)} after {waited:.1f} s; "
                        f"check that {peer} runs and that the network between them works",
                        peer,
                    )
                waiter = self._waiting[me] = _Waiter(peer, tag, threading.Condition(self._lock))
                try:
                    waiter.woken.wait(timeout_s - waited)
                finally:
                    del self._waiting[me]

    def _stuck(self, state: _Peer) -> str:
        if state.outstanding_bytes:
            return f"nothing came and {state.outstanding_bytes} bytes sent were not consumed"
        return "nothing came"

    def _lost(self, peer: str, why: str, doing: str) -> PeerLost:
        return PeerLost(
            f"link {self._name}: peer {peer} is gone ({why}), {doing}; remove it from the plan or restart it", peer
        )


class MailboxLink:
    """What both carriers do alike, as their links are a mailbox, an emulated line and connections."""

    def __init__(self, name: str, trust: Trust, window_bytes: int, bandwidth_bytes_s: float | None) -> None:
        self._name, self._trust = name, trust
        self._mailbox = Mailbox(name, window_bytes)
        self._pacer = Pacer(bandwidth_bytes_s)

    @property
    def stats(self) -> LinkStats:
        return self._mailbox.stats

    @property
    def term(self) -> int:
        return self._mailbox.term

    def arrived(self, peer: str, tag: Tag) -> bool:
        return self._mailbox.holds(peer, tag)

    def cancel(self, reason: str) -> None:
        self._mailbox.cancel(reason)

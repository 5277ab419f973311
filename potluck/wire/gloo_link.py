"""The link over torch.distributed (Gloo), for a trusted cluster. No authentication and no encryption.

One group of two ranks per peer and term: a time-out closes every connection of a group, so no two peers share one.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from potluck.errors import InputError
from potluck.wire.frames import byte_views
from potluck.wire.gloo_edge import GlooEdge
from potluck.wire.link import DEFAULT_WINDOW_BYTES, Buffer, Tag
from potluck.wire.mailbox import MailboxLink
from potluck.wire.trust import ON_THIS_MACHINE, Trust


class GlooLink(MailboxLink):
    """A `Link` over Gloo. Each link hosts a store; of two peers, the one with the smaller name hosts their meeting.

    Gloo lets in whoever comes, and encrypts nothing: only peers whom the `trust` admits are met, and keys are refused.
    A killed peer is noticed at once. A peer that is stopped or cut off is not: calls end at their deadline.
    """

    def __init__(
        self,
        name: str,
        bind: str = "127.0.0.1",
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        bandwidth_bytes_s: float | None = None,
        trust: Trust = ON_THIS_MACHINE,
    ) -> None:
        if trust.link_options(name):
            raise InputError("--carrier gloo cannot be encrypted; use zmq, or a network that you declare plain")
        super().__init__(name, trust, window_bytes, bandwidth_bytes_s)
        self._bind = bind
        try:
            socket.create_server((bind, 0)).close()  # the store would listen everywhere, and find out in over a minute
            self._store = TCPStore(bind, 0, None, True, timedelta(seconds=30), wait_for_workers=False)
        except (OSError, RuntimeError) as error:
            raise InputError(f"cannot listen on {bind} ({error}); give an address of this machine") from error
        self.address = f"{bind}:{self._store.port}"
        self._edges: dict[str, GlooEdge] = {}
        self._leaving: list[GlooEdge] = []  # of the term before: they still take in what is on its way, and count it

    def adopt(self, term: int, peers: Mapping[str, str], window_bytes: int | None = None) -> None:
        self._mailbox.adopt(term, peers, window_bytes)
        for edge in self._leaving:
            edge.abandon()
        self._leaving = list(self._edges.values())
        for edge in self._leaving:
            edge.retire()
        self._pacer.forget()
        self._edges = {}
        for peer, address in peers.items():
            self._connect(peer, address)

    def meet(self, peer: str, address: str) -> None:
        self._mailbox.meet(peer)
        self._connect(peer, address)

    def forget(self, peer: str) -> None:
        self._mailbox.forget(peer)
        edge = self._edges.pop(peer, None)
        if edge is not None:
            edge.abandon()

    def _connect(self, peer: str, address: str) -> None:
        why = self._trust.refusal(address.rpartition(":")[0], "link")
        if why is not None:
            self._mailbox.lose(peer, self.term, why)
            return
        meeting = self.address if self._name < peer else address
        self._edges[peer] = GlooEdge(self._name, peer, self.term, meeting, self._bind, self._mailbox, self._pacer)

    def send(self, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None) -> None:
        """Queue a message. See `Link`. Read-only buffers are copied: torch takes none."""
        views = byte_views(parts)
        term = self._mailbox.reserve(peer, tag, sum(view.nbytes for view in views), timeout_s, term)
        edge = self._edge(peer, term)
        if edge is not None:
            edge.send(tag, views)

    def receive(self, peer: str, tag: Tag, timeout_s: float, term: int | None = None) -> list[memoryview]:
        parcel = self._mailbox.take(peer, tag, timeout_s, term)
        edge = self._edge(peer, parcel.header.term)
        if edge is not None and parcel.size_bytes:
            edge.credit(parcel.size_bytes)
        return parcel.parts

    def close(self) -> None:
        self._mailbox.close()
        for edge in (*self._leaving, *self._edges.values()):
            edge.abandon()
        for edge in (*self._leaving, *self._edges.values()):
            edge.join()
        self._leaving, self._edges = [], {}

    def _edge(self, peer: str, term: int) -> GlooEdge | None:
        edge = self._edges.get(peer)
        return edge if edge is not None and edge.term == term else None  # None: its term ended meanwhile

"""The link over ZeroMQ: one I/O thread, one socket per peer, nothing copied on the way out."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import zmq

from potluck.errors import InputError, LinkError
from potluck.memory_limit import beyond_limit, start
from potluck.settings.address import HERE, LinkAddress
from potluck.wire.frames import (
    PROTOCOL_VERSION,
    CreditHeader,
    MessageHeader,
    byte_views,
    decode_header,
    encode_header,
)
from potluck.wire.link import DEFAULT_WINDOW_BYTES, Buffer, Tag
from potluck.wire.mailbox import MailboxLink
from potluck.wire.trust import ON_THIS_MACHINE, Trust
from potluck.wire.zmq_edge import MAX_FRAME_BYTES, ZmqEdge

# ZeroMQ reads up to 8 KiB into a buffer that parts share; larger ones have memory of their own.
SMALL_PART_BYTES = 16 * 1024
BATCH = 64  # messages read before the thread looks after its other duties: sending waits no longer than for these

# On a slow line a heartbeat waits behind seconds of gradients; that a device is gone, the control channel says sooner.
SILENCE_S = 8.0


class ZmqLink(MailboxLink):
    """A `Link` over ZeroMQ; who gets through to it, and whether others can listen in, its `trust` says.

    A ROUTER receives; one DEALER per peer sends and gets the credits back. A peer whose connection closes, does not
    come to stand or does not answer ZeroMQ's heartbeats for `silence_s`, is lost for the rest of the term. Heartbeats
    are the DEALER's alone:
    on a slow line the answer to the ROUTER's would wait behind a large message, and a busy peer would look dead.
    """

    def __init__(
        self,
        name: str,
        bind: LinkAddress = HERE,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        bandwidth_bytes_s: float | None = None,
        silence_s: float = SILENCE_S,
        trust: Trust = ON_THIS_MACHINE,
    ) -> None:
        super().__init__(name, trust, window_bytes, bandwidth_bytes_s)
        self._silence_s = silence_s
        self._context = zmq.Context()
        with beyond_limit():  # threads of its own begin with the first socket, and end the process where they cannot
            self._router = self._context.socket(zmq.ROUTER)
        self.address = self._bind(bind)
        self._requests: deque[tuple[int | None, Callable[[], None]]] = deque()  # a term, and what to do in it
        self._wake_send, self._wake_receive = socket.socketpair()
        self._wake_send.setblocking(False)
        self._wake_receive.setblocking(False)
        self._awake = False  # a wake-up is under way: no need for another
        self._closing = False
        # From here on, the I/O thread's own.
        self._term = -1
        self._edges: dict[str, ZmqEdge] = {}
        self._paced: deque[tuple[float, str, Tag, list[memoryview]]] = deque()  # when it may go, and to whom
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._wake_receive, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"link {name}", daemon=True)
        start(self._thread)

    # --- called by the device

    def adopt(self, term: int, peers: Mapping[str, str], window_bytes: int | None = None) -> None:
        if not self._thread.is_alive():
            raise LinkError(f"link {self._name}: its I/O thread has ended; restart the device")
        self._mailbox.adopt(term, peers, window_bytes)
        addresses = dict(peers)
        self._request(None, lambda: self._connect(term, addresses))

    def meet(self, peer: str, address: str) -> None:
        self._mailbox.meet(peer)
        self._request(self.term, lambda: self._meet(peer, address))

    def forget(self, peer: str) -> None:
        self._mailbox.forget(peer)
        self._request(self.term, lambda: self._drop_edge(peer))

    def send(self, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None) -> None:
        views = byte_views(parts)
        size_bytes = sum(view.nbytes for view in views)
        term = self._mailbox.reserve(peer, tag, size_bytes, timeout_s, term)
        self._request(term, lambda: self._pace(peer, tag, views, size_bytes))

    def receive(self, peer: str, tag: Tag, timeout_s: float, term: int | None = None) -> list[memoryview]:
        parcel = self._mailbox.take(peer, tag, timeout_s, term)
        due_bytes = self._mailbox.consumed(peer, parcel.header.term, parcel.size_bytes)
        if due_bytes:
            self._request(parcel.header.term, lambda: self._credit(peer, due_bytes))
        return parcel.parts

    def close(self) -> None:
        self._mailbox.close()
        self._closing = True
        self._wake()
        self._thread.join(timeout=5.0)

    def _request(self, term: int | None, deed: Callable[[], None]) -> None:
        """Has the I/O thread do this, unless the term is over by then; None: whatever the term."""
        self._requests.append((term, deed))
        if not self._awake:
            self._wake()

    def _wake(self) -> None:
        self._awake = True
        with contextlib.suppress(OSError):  # full: the thread is about to wake; closed: nothing left to wake
            self._wake_send.send(b"\0")

    def _bind(self, bind: LinkAddress) -> str:
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.RCVHWM, 0)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        for option, value in self._trust.link_options(None):
            self._router.setsockopt(option, value)
        try:
            self._listen(bind)
        except InputError:
            self._context.destroy(linger=0)
            raise
        return self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def _listen(self, bind: LinkAddress) -> None:
        """On the first port that is free; 0 is any."""
        for port in range(bind.ports.first, bind.ports.last + 1):
            try:
                self._router.bind(f"tcp://{bind.host}:{port or '*'}")
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    why = f"cannot listen on {bind.host} ({error}); give an address of this machine"
                    raise InputError(why) from error
        raise InputError(f"--link-ports {bind.ports}: none of them is free on {bind.host}; give more of them")

    # --- the I/O thread

    def _run(self) -> None:
        why = "the link was closed"
        try:
            while not self._closing:
                self._turn()
        except Exception as error:  # whatever it is, callers must not wait for a thread that is gone
            why = f"its I/O thread failed: {error!r}"
            raise
        finally:
            self._mailbox.cancel(why)
            for peer in list(self._edges):
                self._drop_edge(peer)
            self._context.destroy(linger=0)
            self._wake_send.close()
            self._wake_receive.close()

    def _turn(self) -> None:
        ready = dict(self._poller.poll(self._pause_ms()))
        if self._wake_receive.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_receive.recv(4096)
            # After the read and before the requests: whoever still saw the flag up has its request in the queue by now.
            self._awake = False
        self._serve_requests()
        self._release_due()
        if self._router in ready:
            self._read_router()
        for peer, edge in list(self._edges.items()):
            if edge.socket in ready:
                self._read_credits(peer, edge)
                self._flush(edge)
            if edge.monitor in ready and edge.broken():
                # ZeroMQ would reconnect and say nothing of what was lost on the way.
                self._drop_edge(peer)
                self._mailbox.lose(peer, self._term, "its connection closed or fell silent")
            elif edge.patience_s is not None and edge.patience_s <= 0:
                self._drop_edge(peer)
                self._mailbox.lose(peer, self._term, "it cannot be reached")

    def _pause_ms(self) -> int | None:
        if self._requests:
            return 0
        waits = [left for edge in self._edges.values() if (left := edge.patience_s) is not None]
        if self._paced:
            waits.append(self._paced[0][0] - time.monotonic())
        return max(0, math.ceil(min(waits) * 1000)) if waits else None

    def _serve_requests(self) -> None:
        while self._requests:
            term, deed = self._requests.popleft()
            if term in (None, self._term):
                deed()

    def _pace(self, peer: str, tag: Tag, parts: list[memoryview], size_bytes: int) -> None:
        self._paced.append((self._pacer.release_at(size_bytes, time.monotonic()), peer, tag, parts))

    def _credit(self, peer: str, consumed_bytes: int) -> None:
        header = encode_header(CreditHeader(PROTOCOL_VERSION, self._term, consumed_bytes))
        self._router.send_multipart([peer.encode(), header], zmq.NOBLOCK)  # to nobody when it is gone

    def _release_due(self) -> None:
        now = time.monotonic()
        while self._paced and self._paced[0][0] <= now:
            _, peer, tag, parts = self._paced.popleft()
            edge = self._edges.get(peer)
            if edge is not None:
                edge.waiting.append((tag, parts))
                self._flush(edge)

    def _connect(self, term: int, peers: dict[str, str]) -> None:
        """Replace all connections: what old ones still hold must not travel before the new term's messages."""
        self._term = term
        self._paced.clear()
        self._pacer.forget()
        for peer in list(self._edges):
            self._drop_edge(peer)
        for peer, address in peers.items():
            self._meet(peer, address)

    def _meet(self, peer: str, address: str) -> None:
        try:
            keys = self._trust.link_options(peer)
            edge = ZmqEdge(self._context, self._name, self._term, address, self._silence_s, keys)
        except zmq.ZMQError as error:
            self._mailbox.lose(peer, self._term, f"its address {address!r} cannot be used: {error}")
            return
        self._edges[peer] = edge
        self._poller.register(edge.socket, zmq.POLLIN)
        self._poller.register(edge.monitor, zmq.POLLIN)

    def _drop_edge(self, peer: str) -> None:
        edge = self._edges.pop(peer, None)
        if edge is None:
            return
        self._poller.unregister(edge.socket)
        self._poller.unregister(edge.monitor)
        edge.close()

    def _flush(self, edge: ZmqEdge) -> None:
        done = edge.flush()
        self._poller.register(edge.socket, zmq.POLLIN if done else zmq.POLLIN | zmq.POLLOUT)

    def _read_router(self) -> None:
        for _ in range(BATCH):
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            header = decode_header(frames[0].buffer) if frames else None
            parts = [_own(frame.buffer) for frame in frames[1:]]
            if not isinstance(header, MessageHeader) or header.part_bytes != tuple(part.nbytes for part in parts):
                self._mailbox.refuse()
                continue
            self._mailbox.deliver(identity.bytes.decode(errors="replace"), header, parts)

    def _read_credits(self, peer: str, edge: ZmqEdge) -> None:
        for data in edge.read():
            header = decode_header(data)
            if isinstance(header, CreditHeader):
                self._mailbox.credit(peer, header.term, header.consumed_bytes)
            else:
                self._mailbox.refuse()


def _own(view: memoryview) -> memoryview:
    """The part as memory fit for a tensor: small ones lie unaligned in ZeroMQ's shared read buffer and are copied."""
    return memoryview(bytearray(view)) if view.nbytes < SMALL_PART_BYTES else view

"""One Gloo group of two: the connection to one peer in one term, with a sender and a receiver thread."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

import torch

# The stubs of torch do not export the stores, nor describe Gloo's groups.
from torch.distributed import DistError, PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from potluck.memory_limit import start
from potluck.wire.frames import (
    MAX_HEADER_BYTES,
    PROTOCOL_VERSION,
    CreditHeader,
    GoodbyeHeader,
    Header,
    MessageHeader,
    decode_header,
    encode_header,
)
from potluck.wire.link import Tag
from potluck.wire.mailbox import Mailbox
from potluck.wire.pacing import Pacer

FIRST_BYTES = 512  # every frame begins with a tensor of this size: length, then as much of the header as fits
LENGTH_BYTES = 4  # of the length itself: a header is far below 4 GiB
MEETING_POLL_S = 0.01  # between two looks whether the other side is there
CONNECT_S = 10.0  # for two that were told of each other at the same moment
FOREVER = timedelta(days=365)  # a wait that ends takes the whole group with it; deadlines are the mailbox's
TAG_NEVER = 9  # nothing is ever sent with it; frames have their sender's rank as tag


@dataclass(frozen=True)
class _Message:
    release_at: float
    tag: Tag
    parts: list[memoryview]


class _Work(Protocol):
    def wait(self, timeout: timedelta) -> bool: ...


class _Group(Protocol):
    """What is used of a ProcessGroupGloo; the waits let other threads run."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> _Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> _Work: ...


class GlooEdge:
    """The way to and from one peer in one term. Messages wait for their turn on the emulated line, credits do not."""

    def __init__(
        self, name: str, peer: str, term: int, meeting: str, bind: str, mailbox: Mailbox, pacer: Pacer
    ) -> None:
        self.term = term
        self._peer = peer
        self._rank = 0 if name < peer else 1
        self._prefix = f"potluck/{term}/{min(name, peer)}/{max(name, peer)}"
        self._meeting = meeting
        self._bind = bind
        self._mailbox = mailbox
        self._pacer = pacer
        self._sequence = 0
        self._changed = threading.Condition()
        self._messages: deque[_Message] = deque()
        self._credits: deque[int] = deque()
        self._retired = threading.Event()
        self._abandoned = False
        self._group: _Group | None = None
        self._receiver = threading.Thread(target=self._receive_loop, name=f"from {peer}", daemon=True)
        self._sender = threading.Thread(target=self._send_loop, name=f"to {peer}", daemon=True)
        start(self._sender)

    def send(self, tag: Tag, parts: list[memoryview]) -> None:
        with self._changed:
            release_at = self._pacer.release_at(sum(part.nbytes for part in parts), time.monotonic())
            self._messages.append(_Message(release_at, tag, parts))
            self._changed.notify()

    def credit(self, consumed_bytes: int) -> None:
        """Tell the peer that this much of what it sent was consumed."""
        with self._changed:
            self._credits.append(consumed_bytes)
            self._changed.notify()

    def retire(self) -> None:
        """Send nothing more but a goodbye; go on taking in what the peer sends, until it says goodbye too."""
        with self._changed:
            self._retired.set()
            self._changed.notify()

    def abandon(self) -> None:
        """Break the connection, so that threads blocked in it end."""
        self._abandoned = True
        self.retire()
        group = self._group
        if group is not None and (self._sender.is_alive() or self._receiver.is_alive()):
            # There is no other way to free a blocked receive: one that times out closes the whole group.
            with contextlib.suppress(RuntimeError):
                never = torch.empty(1, dtype=torch.uint8)
                group.recv([never], 1 - self._rank, TAG_NEVER).wait(timedelta(milliseconds=1))

    def join(self) -> None:
        """Wait a little for the threads to end; they are daemons, and one stuck in a connect is left behind."""
        for thread in (self._sender, self._receiver):
            if thread.ident is not None:
                thread.join(timeout=1.0)

    # --- meeting the peer

    def _meet(self) -> PrefixStore | None:
        """The store of the meeting, once both sides are there; None when the term ended first."""
        host, _, port = self._meeting.rpartition(":")
        here, there = f"here/{self._rank}", f"here/{1 - self._rank}"
        while not self._retired.is_set():
            try:
                # TCPStore complains on stderr when nobody listens yet: knock first.
                socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
                store = PrefixStore(self._prefix, TCPStore(host, int(port), None, False, timedelta(seconds=CONNECT_S)))
                store.set(here, "")
                while not store.check([there]):
                    if self._retired.wait(MEETING_POLL_S):
                        store.delete_key(here)
                        return None
                return store
            except (OSError, DistError):
                self._retired.wait(MEETING_POLL_S)
        return None

    def _build(self, store: PrefixStore) -> _Group:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._bind)]
        options._timeout = timedelta(seconds=CONNECT_S)
        options._threads = 1
        return cast(_Group, ProcessGroupGloo(store, self._rank, 2, options))

    # --- the two threads

    def _send_loop(self) -> None:
        try:
            store = self._meet()
            if store is None:
                return
            self._group = self._build(store)
            if self._abandoned:
                return
            start(self._receiver)
            while (due := self._next()) is not None:
                self._transmit(*due)
            self._transmit(GoodbyeHeader(PROTOCOL_VERSION, self.term), [])
        except Exception as error:
            self._lose(error)

    def _receive_loop(self) -> None:
        try:
            while True:
                match self._take_header():
                    case MessageHeader() as header:
                        self._mailbox.deliver(self._peer, header, self._take_parts(header))
                    case CreditHeader(term=term, consumed_bytes=consumed_bytes):
                        self._mailbox.credit(self._peer, term, consumed_bytes)
                    case GoodbyeHeader():
                        return
                    case None:
                        self._mailbox.refuse()
                        raise ValueError("it speaks another protocol version")
        except Exception as error:
            self._lose(error)

    def _next(self) -> tuple[Header, list[memoryview]] | None:
        """What to send next, when it is due; None when the term is over."""
        with self._changed:
            while not self._retired.is_set():
                wait_s = None
                if self._credits:
                    return CreditHeader(PROTOCOL_VERSION, self.term, self._credits.popleft()), []
                if self._messages:
                    wait_s = self._messages[0].release_at - time.monotonic()
                    if wait_s <= 0:
                        message = self._messages.popleft()
                        sizes = tuple(part.nbytes for part in message.parts)
                        header = MessageHeader(PROTOCOL_VERSION, self.term, self._sequence, message.tag, sizes)
                        self._sequence += 1
                        return header, message.parts
                self._changed.wait(wait_s)
        return None

    def _lose(self, error: Exception) -> None:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._mailbox.lose(self._peer, self.term, why)

    # --- frames

    def _transmit(self, header: Header, parts: list[memoryview]) -> None:
        group = self._require_group()
        encoded = encode_header(header)
        first = bytearray((len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded).ljust(FIRST_BYTES, b"\0"))
        pieces = [memoryview(first)[:FIRST_BYTES], memoryview(first)[FIRST_BYTES:], *parts]
        tensors = [_as_tensor(piece) for piece in pieces if piece.nbytes]
        works = [group.send([tensor], 1 - self._rank, self._rank) for tensor in tensors]
        for work in works:
            work.wait(FOREVER)

    def _take_header(self) -> Header | None:
        first = self._take([FIRST_BYTES])[0]
        length = int.from_bytes(first[:LENGTH_BYTES], "big")
        encoded = bytes(first[LENGTH_BYTES : LENGTH_BYTES + length])
        rest = length - len(encoded)
        if length > MAX_HEADER_BYTES:
            return None
        return decode_header(encoded + bytes(self._take([rest])[0]) if rest else encoded)

    def _take_parts(self, header: MessageHeader) -> list[memoryview]:
        filled = iter(self._take([size for size in header.part_bytes if size]))
        return [next(filled) if size else memoryview(bytearray()) for size in header.part_bytes]

    def _take(self, sizes: list[int]) -> list[memoryview]:
        group = self._require_group()
        other = 1 - self._rank
        tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        works = [group.recv([tensor], other, other) for tensor in tensors]
        for work in works:
            work.wait(FOREVER)
        return [tensor.numpy().data for tensor in tensors]

    def _require_group(self) -> _Group:
        if self._group is None:
            raise ValueError("not connected")
        return self._group


def _as_tensor(piece: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(piece) if piece.readonly else piece, dtype=torch.uint8)

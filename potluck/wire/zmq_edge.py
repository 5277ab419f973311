"""One ZeroMQ connection to one peer in one term: messages out, credits back, and a watch on whether it still stands."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck.wire.frames import PROTOCOL_VERSION, MessageHeader, encode_header
from potluck.wire.link import Tag
from potluck.wire.trust import SocketOption

MAX_FRAME_BYTES = 4 * 2**30  # a tensor is sent in one frame: larger ones do not fit a device that potluck is for


class ZmqEdge:
    """A DEALER and its monitor; touched by the link's I/O thread only."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, term: int, address: str, silence_s: float,
        keys: Sequence[SocketOption],
    ) -> None:  # fmt: skip
        self.waiting: deque[tuple[Tag, list[memoryview]]] = deque()  # for the connection
        self._term = term
        self._sequence = 0
        self._connected = False
        self._began_s, self._silence_s = time.monotonic(), silence_s
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.SNDHWM: 0,  # the window bounds what is queued, in bytes
            zmq.RCVHWM: 0,
            zmq.IMMEDIATE: 1,
            zmq.RECONNECT_IVL: 50,
            zmq.CONNECT_TIMEOUT: 2000,
            zmq.HEARTBEAT_IVL: int(silence_s * 250),
            zmq.HEARTBEAT_TIMEOUT: int(silence_s * 750),
            zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
        }
        for option, value in (*options.items(), *keys):
            self.socket.setsockopt(option, value)
        self.socket.setsockopt(zmq.ROUTING_ID, name.encode())
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            self.socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def flush(self) -> bool:
        """Hand what waits to ZeroMQ; False when the connection is not there yet."""
        while self.waiting:
            tag, parts = self.waiting[0]
            sizes = tuple(part.nbytes for part in parts)
            header = MessageHeader(PROTOCOL_VERSION, self._term, self._sequence, tag, sizes)
            try:
                self.socket.send_multipart([encode_header(header), *parts], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            self._sequence += 1
            self.waiting.popleft()
        return True

    def read(self) -> list[bytes]:
        """The frames that came back since the last call."""
        frames: list[bytes] = []
        while True:
            try:
                frames.append(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return frames

    @property
    def patience_s(self) -> float | None:
        """How much longer the connection may take to stand; None once it has stood.

        Whoever is to be met listens already: that it does not answer is a broken line.
        """
        return None if self._connected else self._began_s + self._silence_s - time.monotonic()

    def broken(self) -> bool:
        """Whether a connection that once stood has closed."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
            elif event == zmq.EVENT_DISCONNECTED and self._connected:
                return True
        return False

    def close(self) -> None:
        """Drop the connection and what is still queued on it."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)

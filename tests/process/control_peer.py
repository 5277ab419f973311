"""A device's end of the control channel in a process of its own: says hello, then does what it is told."""

from __future__ import annotations

import ctypes
import sys

import msgspec

from potluck.wire.channel import Disconnected
from potluck.wire.control_channel import ControlClient


class Say(msgspec.Struct, tag="say"):
    """Words, in either direction."""

    text: str


class Hold(msgspec.Struct, tag="hold"):
    """Hold the interpreter lock for so long, then say "held"."""

    seconds: float


Message = Say | Hold


def main() -> None:
    """Obey until the channel closes."""
    client: ControlClient[Message, Message] = ControlClient(sys.argv[1], Message, timeout_s=20.0)
    client.send(Say("hello"))
    while not isinstance(event := client.inbox.get(timeout=60.0), Disconnected):
        if isinstance(event.message, Hold):
            # Functions of a PyDLL are called with the lock held: no other thread of this process runs.
            ctypes.PyDLL(None).usleep(int(event.message.seconds * 1e6))
            client.send(Say("held"))


if __name__ == "__main__":
    main()

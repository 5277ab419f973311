"""Writes down what every message between stages weighs, in each process that loads it as an extension."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from potluck.wire.link import Buffer, Tag
from potluck.wire.zmq_link import ZmqLink

FOLDER = "COUNTED_MESSAGES"  # variable that names where to
_KINDS = ("act-train", "gradient")
_send = ZmqLink.send


def counted_bytes(folder: Path) -> int:
    """All that was written down so far; it is forgotten."""
    files = list(folder.iterdir())
    found = sum(int(line) for file in files for line in file.read_text().split())
    for file in files:
        file.write_text("")
    return found


def _counted(
    self: ZmqLink, peer: str, tag: Tag, parts: Sequence[Buffer], timeout_s: float, term: int | None = None
) -> None:
    if tag.kind in _KINDS:
        with (Path(os.environ[FOLDER]) / f"{os.getpid()}").open("a") as file:
            file.write(f"{sum(memoryview(part).nbytes for part in parts)}\n")
    _send(self, peer, tag, parts, timeout_s, term)


if FOLDER in os.environ:
    ZmqLink.send = _counted  # type: ignore[method-assign]

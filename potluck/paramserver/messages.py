"""What goes with a pushed difference, and with the weights that answer it."""

from __future__ import annotations

from typing import Literal

import msgspec

from potluck.paramserver.applied_pushes import Push
from potluck.types import Pace

# For a push, or an answer for which others may have to push first; the control channel says that somebody is gone.
PATIENCE_S = 24 * 3600.0
# Kinds of tags. Pushes are numbered by what went over the link before, answers by the push's own number.
PUSH, PULL = "push", "pull"


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker found by samples that it keeps to judge by."""

    version: int  # of the weights
    loss: float | None  # None: it is not finite
    samples: int


class PushWords(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's words."""

    push: Push
    overhead_s: float  # of the push before and its answer
    cpu_s: float = 0.0  # that its steps took since the push before
    held_out: HeldOut | None = None  # since then


class PullWords(msgspec.Struct, frozen=True, kw_only=True):
    """The server's words; the first weights are number 0."""

    status: Literal["first", "applied", "skipped", "early", "fenced"]
    version: int = 0
    durable_up_to: int = 0
    pace: Pace | None = None
    lr_scale: float = 1.0
    reason: str = ""


def worker_link(worker: str, incarnation: int) -> str:
    """The name of a worker's link for pushes. No device is called so: names have no slash."""
    return f"{worker}/{incarnation}"

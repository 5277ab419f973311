"""Into which pieces the gradients of a group are cut to be summed while the last backward of a round goes on.

A backward pass has the gradients of the last layers first. What becomes ready together is a bucket: it is sent to
whoever adds it up, and its sums come back, while the pass goes on. They come in waves, in each of which every device
adds up a piece, so that no line is taken by one device's pieces while the others' are idle; and each wave is half
the one before, as everybody waits for the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from potluck.plan.cost.summing import parts_of
from potluck.types import Block, Stage

_BUCKETS = 15  # about as many in a group,
_MOST = 3  # and so many for one device that adds up: each costs everybody two messages


class BucketPiece(NamedTuple):
    """A part of the gradients, and who adds it up."""

    adder: str
    part: float


class Bucket(NamedTuple):
    """A piece of a stage's gradients."""

    adder: str
    size_bytes: int
    ready: float  # when it is complete: 0 at the beginning of the backward pass, 1 at its end


def pieces(parts: Mapping[str, float]) -> list[BucketPiece]:
    """The pieces in the order in which a backward pass has them, given the part that each device adds up."""
    able = sorted((device for device, part in parts.items() if part > 0), key=lambda device: parts[device])
    whole = sum(parts[device] for device in able)
    waves = max(1, min(_MOST, round(_BUCKETS / len(able))))
    sizes = [2.0**-wave for wave in range(waves)]
    return [BucketPiece(device, parts[device] / whole * size / sum(sizes)) for size in sizes for device in able]


def buckets(stage: Stage, blocks: Sequence[Block], backward_s: Sequence[float]) -> list[Bucket]:
    """The buckets of a stage, given its blocks and what the backward of each takes."""
    total, all_s = sum(b.trainable_bytes for b in blocks), sum(backward_s)
    if len(stage.group) == 1 or not total:
        return []
    found, done, seconds = [], 0.0, 0.0
    behind = list(zip((b.trainable_bytes for b in blocks), backward_s, strict=True))
    covered = 0
    for adder, part in pieces(parts_of(stage.group)):
        done += part
        while behind and covered < done * total * (1 - 1e-9):
            size, took = behind.pop()
            covered += size
            seconds += took
        found.append(Bucket(adder, int(part * total), seconds / all_s if all_s > 0 and behind else 1.0))
    return found

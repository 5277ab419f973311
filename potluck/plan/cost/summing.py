"""Who of a group adds up how much of its gradients, and what that costs each member.

Every parameter has one device that adds it up. Whoever adds up a part f of G bytes in a group of n sends the rest of
its own gradients and n - 1 sums, so G · (1 + (n - 2) · f) bytes, and gets as many. Its line is taken for the larger of
(1 - f) · G and (n - 1) · f · G bytes while parts are sent, and as long again for the sums. Where a slow processor
handles bytes more slowly than lines carry them, it is spared; where lines are the limit, all add up alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from potluck.plan.cost.tables import Array, Tables
from potluck.types import Member

_EACH = 20  # the weight of a member that adds up as much as any other


_HALVINGS = 40
LAST_PART = 0.15  # of what is sent, about as much leaves when the last backward is over


class Summing(NamedTuple):
    """Seconds of one member."""

    handling_s: float  # of its processor: its parts leave and those it adds up arrive; as much again for the sums
    lines_s: float  # for which its lines are taken, of both
    latency_s: float  # of a message

    def scaled(self, base: Summing, times: float) -> Summing:
        """So many times as many bytes; `base` is what none cost."""
        return Summing(*(b + times * (mine - b) for mine, b in zip(self, base, strict=True)))

    def left_s(self, backward_s: float) -> float:
        """What is left to wait for after a last backward of this length, of which the first half has little to send."""
        return max(LAST_PART * self.lines_s, self.lines_s - backward_s / 2) + 2 * self.latency_s


def adding_weights(tables: Tables, devices: Sequence[str]) -> tuple[int, ...]:
    """How much of a group's gradients each member adds up, so that all are done at the same time."""
    count = len(devices)
    if count <= 2:  # of two, each sends and gets as much whoever adds up
        return (1,) * count
    rates = tables.rates(devices)
    handled, line = 2 * rates.copy, np.maximum(rates.lines.max(axis=1), rates.inlet)
    if float((handled + line).min()) <= 0:
        return (1,) * count
    low, high = 0.0, float((2 * handled + 2 * line).max()) * count
    for _ in range(_HALVINGS):  # the least time in which together they can add up everything
        level = (low + high) / 2
        low, high = (low, level) if _most(level, handled, line, count).sum() >= 1 else (level, high)
    parts = _most(high, handled, line, count)
    return tuple(round(_EACH * count * part) for part in (parts / parts.sum()).tolist())


def _most(level: float, handled: Array, line: Array, count: int) -> Array:
    """The largest part that each can add up in so much time for each byte of the group's gradients."""
    part: Array = (level - handled) / (handled * (count - 2) + 2 * line * (count - 1))
    more = handled * (count - 2) - 2 * line
    capped = (level - handled - 2 * line) / np.where(more > 0, more, 1.0)
    most: Array = np.clip(np.where(more > 0, np.minimum(part, capped), part), 0.0, 1.0)
    return most


def parts_of(group: Sequence[Member]) -> dict[str, float]:
    """The part of the gradients that each member adds up."""
    if len(group) == 1:
        return {group[0].device: 1.0}
    whole = sum(member.sums for member in group)
    return {member.device: member.sums / whole for member in group}


def summing_parcels(group: Sequence[Member]) -> list[tuple[str, str, float]]:
    """From whom to whom which part of a group's gradients goes while they are summed, there and back."""
    parts = parts_of(group)
    return [(a, b, parts[a] + parts[b]) for a in parts for b in parts if a != b]


def summing_s(tables: Tables, group: Sequence[Member], size_bytes: float) -> list[Summing]:
    """What each member of a group spends on summing so many bytes."""
    others, parts = len(group) - 1, np.array(list(parts_of(group).values()))
    rates = tables.rates([m.device for m in group])
    adders = (parts > 0).sum() - (parts > 0)
    moved = size_bytes * ((1 - parts) + others * parts)
    handling = (adders + others * (parts > 0)) * rates.message_s + moved * rates.copy
    lines = size_bytes * _lines(rates.lines, rates.inlet, parts, tables.profile.medium)
    shared = tables.trunk_loads(summing_parcels(group))
    lines = np.maximum(lines, size_bytes * max(shared.values(), default=0.0))
    columns = (handling.tolist(), lines.tolist(), rates.latency_s.max(axis=1).tolist())
    return [Summing(*row) for row in zip(*columns, strict=True)]


def _lines(lines: Array, inlet: Array, parts: Array, medium: str) -> Array:
    """Seconds for which each member's line is taken, for each byte: while parts are sent, and then sums."""
    others = len(parts) - 1
    parts_out, sums_out = lines @ parts, lines.sum(axis=1) * parts
    if medium == "shared":
        return np.full(len(parts), parts_out.sum() + sums_out.sum())
    result: Array
    if medium == "full":
        result = np.maximum(parts_out, inlet * parts * others) + np.maximum(sums_out, inlet * (1 - parts))
        return result
    result = parts_out + sums_out + lines.sum(axis=0) * parts + parts @ lines
    return result

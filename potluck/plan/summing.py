"""Who of a group adds up how much of its gradients, and what that costs each member.

Every parameter has one device that adds it up. Whoever adds up a part f of G bytes in a group of n sends the rest of
its own gradients and n - 1 sums, so G · (1 + (n - 2) · f) bytes, and gets as many. Its line is taken for the larger of
(1 - f) · G and (n - 1) · f · G bytes while parts are sent, and as long again for the sums. Where a slow processor
handles bytes more slowly than lines carry them, it is spared; where lines are the limit, all add up alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from potluck.plan.tables import DeviceTables, Tables
from potluck.types import Member

WHOLE = 100  # weights of a group add up to about this


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
    if count == 1:
        return (1,)
    costs = [_byte_s(tables, device, devices) for device in devices]
    if count == 2 or min(map(sum, costs)) <= 0:  # of two, each sends and gets as much whoever adds up
        return (1,) * count
    low, high = 0.0, max(2 * handled + 2 * line for handled, line in costs) * count
    for _ in range(_HALVINGS):  # the least time in which together they can add up everything
        level = (low + high) / 2
        low, high = (low, level) if sum(_most(level, *c, count) for c in costs) >= 1 else (level, high)
    parts = [_most(high, *cost, count) for cost in costs]
    return tuple(round(WHOLE * part / sum(parts)) for part in parts)


def _most(level: float, handled: float, line: float, count: int) -> float:
    """The largest part that somebody can add up in so much time for each byte of the group's gradients."""
    part = (level - handled) / (handled * (count - 2) + 2 * line * (count - 1))
    more = handled * (count - 2) - 2 * line
    if more > 0:
        part = min(part, (level - handled - 2 * line) / more)
    return max(0.0, min(1.0, part))


def _byte_s(tables: Tables, device: str, group: Sequence[str]) -> tuple[float, float]:
    """Seconds of processor for a byte that the device sends and one that it gets, and of its line for one of them."""
    copy = tables.devices[device].profile.copy_bytes_s
    line_s = max(tables.transfer_s(device, other, 1.0) for other in group if other != device)
    return (2.0 / copy if copy else 0.0), max(line_s, tables.inlet_s(device, 1.0))


def parts_of(group: Sequence[Member]) -> dict[str, float]:
    """The part of the gradients that each member adds up."""
    if len(group) == 1:
        return {group[0].device: 1.0}
    whole = sum(member.sums for member in group)
    return {member.device: member.sums / whole for member in group}


def summing_s(tables: Tables, group: Sequence[Member], size_bytes: float) -> list[Summing]:
    """What each member of a group spends on summing so many bytes."""
    parts = parts_of(group)
    return [_member(tables, tables.devices[m.device], parts, size_bytes) for m in group]


def _member(tables: Tables, me: DeviceTables, parts: dict[str, float], size: float) -> Summing:
    others = [device for device in parts if device != me.name]
    mine, adders = size * parts[me.name], [other for other in others if parts[other] > 0]
    first, second = _lines_s(tables, me.name, parts, size)
    copy = me.profile.copy_bytes_s
    messages = len(adders) + (len(others) if parts[me.name] > 0 else 0)
    moved = size * (1 - parts[me.name]) + len(others) * mine
    handling = messages * me.profile.message_s + (moved / copy if copy else 0.0)
    latency = max(tables.latency_s(me.name, other) for other in others)
    return Summing(handling, first + second, latency)


def _lines_s(tables: Tables, me: str, parts: dict[str, float], size: float) -> tuple[float, float]:
    """Seconds for which a member's lines are taken while parts are sent, and while sums are."""
    if tables.profile.medium == "shared":
        both = sum(tables.transfer_s(a, b, size * parts[b]) for a in parts for b in parts if a != b)
        return both, sum(tables.transfer_s(a, b, size * parts[a]) for a in parts for b in parts if a != b)
    others = [device for device in parts if device != me]
    parts_out_s = sum(tables.transfer_s(me, other, size * parts[other]) for other in others)
    sums_out_s = sum(tables.transfer_s(me, other, size * parts[me]) for other in others)
    if tables.profile.medium == "full":
        parts_in_s = tables.inlet_s(me, size * parts[me] * len(others))
        sums_in_s = tables.inlet_s(me, size * (1 - parts[me]))
        return max(parts_out_s, parts_in_s), max(sums_out_s, sums_in_s)
    parts_in_s = sum(tables.transfer_s(other, me, size * parts[me]) for other in others)
    sums_in_s = sum(tables.transfer_s(other, me, size * parts[other]) for other in others)
    return parts_out_s + parts_in_s, sums_out_s + sums_in_s

"""Sums gradients over everybody who holds a parameter: the members of a group, and stages that share a tied weight.

Every parameter has one device that adds up, in a fixed order, and gives the sum back; the work is spread by bytes.
So all holders get the same bits, and no device carries more than its part of the traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from potluck.errors import LinkError
from potluck.runtime.exchange import Site
from potluck.runtime.parcels import pack, unpack
from potluck.types import Plan
from potluck.wire.link import Tag


@dataclass(frozen=True)
class Sums:
    """Which parameters are added up where. `holders` in the order of addition."""

    holders: dict[str, tuple[str, ...]]
    adder: dict[str, str]


def share_sums(plan: Plan, users: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> Sums:
    """Who adds up what: `users` are the stages that use a trainable parameter, owner first."""
    holders: dict[str, tuple[str, ...]] = {}
    adder: dict[str, str] = {}
    load: dict[str, int] = dict.fromkeys(plan.devices, 0)
    for name, stages in users.items():
        devices = tuple(m.device for s in stages for m in plan.stages[s].group)
        if len(devices) > 1:
            holders[name] = devices
            adder[name] = min(devices, key=lambda d: (load[d], devices.index(d)))
            load[adder[name]] += sizes[name]
    return Sums(holders, adder)


def reduce_gradients(site: Site, sums: Sums, round: int) -> None:
    """Replaces this device's gradients of shared parameters by the sums."""
    stage, me, link, timeout_s = site.stage, site.me, site.link, site.timeout_s
    mine = {n: h for n, h in sums.holders.items() if me in h}
    if not mine:
        return
    gradients = stage.gradients()
    peers = sorted({d for h in mine.values() for d in h if d != me})
    for peer in peers:
        theirs = [n for n, h in mine.items() if sums.adder[n] == peer]
        if theirs:
            link.send(peer, Tag("reduce", round), pack([gradients[n] for n in theirs]), timeout_s)
    summed = _add_up(site, mine, sums, gradients, peers, round)
    for peer in peers:
        shared = [n for n, h in mine.items() if sums.adder[n] == me and peer in h]
        if shared:
            link.send(peer, Tag("sum", round), pack([summed[n] for n in shared]), timeout_s)
    for peer in peers:
        theirs = [n for n, h in mine.items() if sums.adder[n] == peer]
        if theirs:
            received = unpack(link.receive(peer, Tag("sum", round), timeout_s), stage.device)
            summed.update(zip(theirs, received, strict=True))
    stage.set_gradients(summed)


def _add_up(
    site: Site,
    mine: Mapping[str, tuple[str, ...]],
    sums: Sums,
    gradients: Mapping[str, torch.Tensor | None],
    peers: Sequence[str],
    round: int,
) -> dict[str, torch.Tensor | None]:
    me = site.me
    own = [n for n in mine if sums.adder[n] == me]
    parts: dict[str, dict[str, torch.Tensor | None]] = {me: {n: gradients[n] for n in own}}
    for peer in peers:
        names = [n for n in own if peer in mine[n]]
        if names:
            received = unpack(site.link.receive(peer, Tag("reduce", round), site.timeout_s), site.stage.device)
            parts[peer] = dict(zip(names, received, strict=True))
    summed: dict[str, torch.Tensor | None] = {}
    for name in own:
        total: torch.Tensor | None = None
        for holder in mine[name]:
            gradient = parts[holder][name]
            if gradient is not None:
                total = gradient if total is None else total + gradient
        summed[name] = total
    return summed


def share_statistics(site: Site, round: int) -> None:
    """Gives everybody in the group the batch statistics of all micro-batches, so that all fold the same buffers."""
    stage, group, me, link, timeout_s = site.stage, site.group, site.me, site.link, site.timeout_s
    if len(group) < 2 or not stage.piece.updates:
        return
    keys = sorted(stage.statistics)
    index = torch.tensor([[*key, stage.statistics[key][1]] for key in keys], dtype=torch.int64).reshape(-1, 3)
    message = pack([index, *(stage.statistics[key][0] for key in keys)])
    others = [d for d in group if d != me]
    for peer in others:
        link.send(peer, Tag("statistics", round), message, timeout_s)
    collected = {key: [stage.statistics[key]] for key in keys}
    for peer in others:
        head, *values = unpack(link.receive(peer, Tag("statistics", round), timeout_s), stage.device)
        for (micro_batch, update, count), value in zip([] if head is None else head.tolist(), values, strict=True):
            if value is None:
                raise LinkError(f"damaged statistics arrived from {peer}; the link is broken")
            collected.setdefault((micro_batch, update), []).append((value, count))
    stage.statistics = {key: _mean(parts) for key, parts in collected.items()}


def _mean(parts: Sequence[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, int]:
    """By turns there is one part. By samples (`batchnorm="local"`) the parts are averaged by rows."""
    if len(parts) == 1:
        return parts[0]
    rows = sum(count for _, count in parts)
    total = sum(value.double() * count for value, count in parts)
    return (total / rows).to(parts[0][0].dtype), rows  # type: ignore[union-attr]

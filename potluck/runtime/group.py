"""Sums gradients over everybody who holds a parameter: the members of a group, and stages that share a tied weight.

Every parameter has one device that adds up, in a fixed order, and gives the sum back; the work is spread by bytes.
So all holders get the same bits, and no device carries more than its part of the traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from potluck.errors import LinkError
from potluck.runtime.exchange import Site
from potluck.runtime.parcels import pack, unpack
from potluck.runtime.running_buffers import Statistic
from potluck.types import Plan
from potluck.wire.link import Tag

_LARGE_BYTES = 1 << 19  # from here on a gradient travels as it is; smaller ones end to end in one piece


@dataclass(frozen=True)
class Sums:
    """Which parameters are added up where. `holders` in the order of addition."""

    holders: dict[str, tuple[str, ...]]
    adder: dict[str, str]

    def answerable(self, site: Site) -> list[str]:
        """Parameters whose gradient norm this device reports: those it adds up, and those it alone holds."""
        mine = [n for n in site.stage.trainable if site.layout.owner[n] == site.index]
        alone = [n for n in mine if n not in self.holders]
        return [n for n, adder in self.adder.items() if adder == site.me] + alone


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


def reduce_gradients(site: Site, sums: Sums, round: int, meanwhile: Callable[[], None]) -> None:
    """Replaces this device's gradients of shared parameters by the sums.

    `meanwhile` is called when this device's own sums are there and those of the others are still on their way.
    """
    mine = {n: h for n, h in sums.holders.items() if site.me in h}
    if not mine:
        meanwhile()
        return
    gradients = site.stage.gradients()
    peers = sorted({d for h in mine.values() for d in h if d != site.me})
    theirs = {peer: [n for n in mine if sums.adder[n] == peer] for peer in peers}
    ours = {peer: [n for n, h in mine.items() if sums.adder[n] == site.me and peer in h] for peer in peers}
    for peer in peers:
        _send(site, [peer], Tag("reduce", round), [gradients[n] for n in theirs[peer]])
    parts = {peer: _receive(site, peer, Tag("reduce", round), ours[peer]) for peer in peers}
    parts[site.me] = gradients
    summed: dict[str, torch.Tensor | None] = {}
    for name, holders in mine.items():
        if sums.adder[name] == site.me:
            summed[name] = _total([parts[holder].pop(name) for holder in holders])
    for names in dict.fromkeys(map(tuple, ours.values())):  # in a group without tied weights, all peers get the same
        given = [peer for peer in peers if tuple(ours[peer]) == names]
        _send(site, given, Tag("sum", round), [summed[n] for n in names])
    site.stage.set_gradients(summed)
    meanwhile()
    for peer in peers:
        summed.update(_receive(site, peer, Tag("sum", round), theirs[peer]))
    site.stage.set_gradients(summed)


def _total(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """The sum in the given order, in the memory of the first; who has no gradient (a short round) is left out."""
    total: torch.Tensor | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total.add_(part)
    return total


def _send(site: Site, peers: Sequence[str], tag: Tag, tensors: Sequence[torch.Tensor | None]) -> None:
    """Sends gradients to these peers: large ones as they are, small ones end to end, as a message part costs more."""
    if not tensors:
        return
    present = torch.tensor([t is not None for t in tensors])
    given = [t for t in tensors if t is not None]
    small: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in given:
        if tensor.nbytes < _LARGE_BYTES:
            small.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    flat = [torch.cat(some) for some in small.values()]
    large = [t.contiguous() for t in given if t.nbytes >= _LARGE_BYTES]
    message = pack([present, *flat, *large])
    for peer in peers:
        site.link.send(peer, tag, message, site.timeout_s)


def _receive(site: Site, peer: str, tag: Tag, names: Sequence[str]) -> dict[str, torch.Tensor | None]:
    """The gradients of these parameters, as a peer sent them."""
    if not names:
        return {}
    head, *rest = unpack(site.link.receive(peer, tag, site.timeout_s), site.stage.device, copy=False)
    if head is None or len(head) != len(names):
        raise LinkError(f"damaged gradients arrived from {peer}; the link is broken")
    present = [site.stage.parameters[n] for n, there in zip(names, head.tolist(), strict=True) if there]
    kinds = len({p.dtype for p in present if p.nbytes < _LARGE_BYTES})
    flats = {t.dtype: iter(t.split(_sizes(present, t.dtype))) for t in rest[:kinds] if t is not None}
    large = iter(rest[kinds:])
    found: dict[str, torch.Tensor | None] = dict.fromkeys(names)
    for name, there in zip(names, head.tolist(), strict=True):
        parameter = site.stage.parameters[name]
        if there:
            arrived = next(large, None) if parameter.nbytes >= _LARGE_BYTES else next(flats[parameter.dtype])
            if arrived is None or arrived.numel() != parameter.numel():
                raise LinkError(f"damaged gradients of {name} arrived from {peer}; the link is broken")
            found[name] = arrived.view(parameter.shape)
    return found


def _sizes(parameters: Sequence[torch.Tensor], dtype: torch.dtype) -> list[int]:
    return [p.numel() for p in parameters if p.dtype == dtype and p.nbytes < _LARGE_BYTES]


def share_statistics(site: Site, round: int) -> None:
    """Gives everybody in the group the batch statistics of all micro-batches, so that all fold the same buffers."""
    running = site.stage.running
    if len(site.group) < 2 or not running.shared:
        return
    keys = sorted(running.statistics)
    index = torch.tensor([[*key, running.statistics[key].rows] for key in keys], dtype=torch.int64).reshape(-1, 3)
    message = pack([index, *(running.statistics[key].flat for key in keys)])
    others = [d for d in site.group if d != site.me]
    for peer in others:
        site.link.send(peer, Tag("statistics", round), message, site.timeout_s)
    collected = {key: [running.statistics[key]] for key in keys}
    for peer in others:
        head, *values = unpack(site.link.receive(peer, Tag("statistics", round), site.timeout_s), site.stage.device)
        for (micro_batch, kind, rows), value in zip([] if head is None else head.tolist(), values, strict=True):
            if value is None:
                raise LinkError(f"damaged statistics arrived from {peer}; the link is broken")
            collected.setdefault((micro_batch, kind), []).append(Statistic(value, rows))
    running.statistics = {key: _mean(parts) for key, parts in collected.items()}


def _mean(parts: Sequence[Statistic]) -> Statistic:
    """By turns there is one part. By samples (`batchnorm="local"`) the parts are averaged by rows."""
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.rows for part in parts)
    total = torch.stack([part.flat.double() * part.rows for part in parts]).sum(0)
    return Statistic((total / rows).to(parts[0].flat.dtype), rows)

"""Sums gradients over everybody who holds a parameter: the members of a group, and stages that share a tied weight.

Every parameter has one device that adds up, in a fixed order, and gives the sum back; the work is spread by bytes, as
the plan says. So all holders get the same bits, and no device carries more than its part of the traffic. What batches
did to running statistics travels in the same messages: to one member of the group, the keeper, and from it to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from potluck.errors import LinkError
from potluck.plan.summing import parts_of
from potluck.runtime.bundles import Bundle, take, total
from potluck.runtime.exchange import Site
from potluck.runtime.parcels import pack, unpack
from potluck.runtime.running_buffers import Statistic
from potluck.types import Plan
from potluck.wire.link import Tag

Holders = tuple[str, ...]  # devices, in the order of addition


@dataclass(frozen=True)
class Sums:
    """Which parameters are added up where."""

    holders: dict[str, Holders]
    adder: dict[str, str]

    def answerable(self, site: Site) -> list[str]:
        """Parameters whose gradient norm this device reports: those it adds up, and those it alone holds."""
        mine = [n for n in site.stage.trainable if site.layout.owner[n] == site.index]
        alone = [n for n in mine if n not in self.holders]
        return [n for n, adder in self.adder.items() if adder == site.me] + alone


def share_sums(plan: Plan, users: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> Sums:
    """Who adds up what: `users` are the stages that use a trainable parameter, owner first."""
    holders: dict[str, Holders] = {}
    for name, stages in users.items():
        devices = tuple(m.device for s in stages for m in plan.stages[s].group)
        if len(devices) > 1:
            holders[name] = devices
    weights = {device: part for stage in plan.stages for device, part in parts_of(stage.group).items()}
    adder: dict[str, str] = {}
    load: dict[str, int] = dict.fromkeys(plan.devices, 0)
    for name in sorted(holders, key=lambda name: -sizes[name]):  # small ones last: they even it out
        able = [d for d in holders[name] if weights[d] > 0]
        adder[name] = min(able, key=lambda d: ((load[d] + sizes[name]) / weights[d], able.index(d)))
        load[adder[name]] += sizes[name]
    return Sums(holders, {name: adder[name] for name in holders})


class Reducer:
    """One device's part in the sums of a plan."""

    def __init__(self, site: Site, sums: Sums) -> None:
        self._site, me = site, site.me
        group = site.plan.stages[site.index].group
        shared = len(group) > 1 and site.stage.running.shared
        self._keeper = max(group, key=lambda m: m.sums).device if shared else None
        # Adder → what it adds up, by holders: in a group without tied weights, that is one bundle.
        self._bundles: dict[str, dict[Holders, list[str]]] = {}
        for name, holders in sums.holders.items():
            if me in holders:
                self._bundles.setdefault(sums.adder[name], {}).setdefault(holders, []).append(name)
        everybody = {device for bundles in self._bundles.values() for holders in bundles for device in holders}
        if shared:
            everybody |= set(site.group)
        ordered = sorted(everybody | {me})
        place = ordered.index(me)
        self._peers = ordered[place + 1 :] + ordered[:place]  # everybody begins with somebody else

    def run(self, round: int, meanwhile: Callable[[], None]) -> None:
        """Replaces this device's gradients of shared parameters by the sums, and its statistics by those of the group.

        `meanwhile` is called when this device's own sums are there and those of the others are still on their way.
        """
        site, me = self._site, self._site.me
        stage = site.stage
        gradients = stage.gradients()
        for peer in self._peers:
            self._send([peer], Tag("reduce", round), self._own(peer, gradients), keep=peer == self._keeper)
        held = {holders: {me: Bundle.of(names, gradients)} for holders, names in self._bundles.get(me, {}).items()}
        told = {me: stage.running.statistics}
        for peer in self._peers:
            wanted = {h: names for h, names in self._bundles.get(me, {}).items() if peer in h}
            bundles, told[peer] = self._receive(peer, Tag("reduce", round), wanted, keep=me == self._keeper)
            for holders, bundle in bundles.items():
                held[holders][peer] = bundle
        added = {h: total([bundles[d] for d in h], stage.parameters) for h, bundles in held.items()}
        if me == self._keeper:
            stage.running.statistics = _merged([told[d] for d in site.group])
        for peers, sets in self._audiences(added):
            self._send(peers, Tag("sum", round), [added[h] for h in sets], keep=me == self._keeper)
        for bundle in added.values():
            stage.set_gradients(bundle.by_name(stage.parameters))
        meanwhile()
        for peer in self._peers:
            bundles, statistics = self._receive(
                peer, Tag("sum", round), self._bundles.get(peer, {}), keep=peer == self._keeper
            )
            for bundle in bundles.values():
                stage.set_gradients(bundle.by_name(stage.parameters))
            if peer == self._keeper:
                stage.running.statistics = statistics

    def _own(self, adder: str, gradients: Mapping[str, torch.Tensor | None]) -> list[Bundle]:
        return [Bundle.of(names, gradients) for names in self._bundles.get(adder, {}).values()]

    def _audiences(self, added: Iterable[Holders]) -> list[tuple[list[str], tuple[Holders, ...]]]:
        """Peers who get the same sums, and which; in a group without tied weights all get the same."""
        found: dict[tuple[Holders, ...], list[str]] = {}
        for peer in self._peers:
            found.setdefault(tuple(holders for holders in added if peer in holders), []).append(peer)
        return [(peers, holders) for holders, peers in found.items()]

    def _send(self, peers: Sequence[str], tag: Tag, bundles: Sequence[Bundle], *, keep: bool) -> None:
        site = self._site
        tensors: list[torch.Tensor] = [part for bundle in bundles for part in bundle.parts]
        with_statistics = [p for p in peers if keep and p in site.group]
        for some, more in (
            (with_statistics, _written(site.stage.running.statistics) if with_statistics else []),
            ([p for p in peers if p not in with_statistics], []),
        ):
            if some and (tensors or more):
                message = pack([*tensors, *more])
                for peer in some:
                    site.link.send(peer, tag, message, site.timeout_s)

    def _receive(
        self, peer: str, tag: Tag, wanted: Mapping[Holders, Sequence[str]], *, keep: bool
    ) -> tuple[dict[Holders, Bundle], dict[tuple[int, int], Statistic]]:
        site = self._site
        keep = keep and peer in site.group
        if not wanted and not keep:
            return {}, {}
        parts = iter(unpack(site.link.receive(peer, tag, site.timeout_s), site.stage.device, copy=False))
        bundles = {holders: take(parts, names, site.stage.parameters, peer) for holders, names in wanted.items()}
        return bundles, _read(list(parts), peer) if keep else {}


def _written(statistics: Mapping[tuple[int, int], Statistic]) -> list[torch.Tensor]:
    keys = sorted(statistics)
    index = torch.tensor([[*key, statistics[key].rows] for key in keys], dtype=torch.int64).reshape(-1, 3)
    return [index, *(statistics[key].flat for key in keys)]


def _read(parts: Sequence[torch.Tensor | None], peer: str) -> dict[tuple[int, int], Statistic]:
    found = {}
    index = parts[0] if parts else None
    if index is None or len(index) != len(parts) - 1:
        raise LinkError(f"damaged statistics arrived from {peer}; the link is broken")
    for (micro_batch, kind, rows), value in zip(index.tolist(), parts[1:], strict=True):
        if value is None:
            raise LinkError(f"damaged statistics arrived from {peer}; the link is broken")
        found[micro_batch, kind] = Statistic(value, rows)
    return found


def _merged(told: Sequence[Mapping[tuple[int, int], Statistic]]) -> dict[tuple[int, int], Statistic]:
    collected: dict[tuple[int, int], list[Statistic]] = {}
    for statistics in told:
        for key, statistic in statistics.items():
            collected.setdefault(key, []).append(statistic)
    return {key: _mean(parts) for key, parts in collected.items()}


def _mean(parts: Sequence[Statistic]) -> Statistic:
    """By turns there is one part. By samples (`batchnorm="local"`) the parts are averaged by rows."""
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.rows for part in parts)
    added = torch.stack([part.flat.double() * part.rows for part in parts]).sum(0)
    return Statistic((added / rows).to(parts[0].flat.dtype), rows)

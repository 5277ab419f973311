"""What Asteroid's planner knows: times, memory and bandwidths of every run of blocks on every device, as arrays.

And its Algorithm 1, for all runs of blocks and all groups of one size at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from potluck.plan.cost.edges import Edges
from potluck.plan.cost.span_arrays import SpanArrays
from potluck.plan.cost.tables import Array, DeviceTables, Tables
from potluck.types import ModelFacts, Profile

Shares = NDArray[np.int64]
WAITING = 3  # micro-batches that may wait between stages whose depths differ by two


class Ground:
    """A model and a fleet, devices sorted by memory; `borders` are the block borders where a cut is considered."""

    def __init__(
        self, facts: ModelFacts, profile: Profile, rows: int, micro_batches: int, borders: Sequence[int]
    ) -> None:
        self.facts, self.rows, self.micro_batches = facts, rows, micro_batches
        self.borders = tuple(borders)
        self.tables = Tables(profile)
        ordered = sorted(profile.devices, key=lambda d: -(d.device.memory_bytes or float("inf")))
        self.devices = [self.tables.devices[d.device.name] for d in ordered]
        self.limits = np.array([d.memory_bytes or np.inf for d in self.devices])
        self.first, self.last = np.triu_indices(len(borders), 1)  # of each span: places in `borders`
        self.spans = [(self.borders[int(i)], self.borders[int(j)]) for i, j in zip(self.first, self.last, strict=True)]
        held = [facts.blocks[slice(*span)] for span in self.spans]
        self.coupled = np.array([any(b.coupled for b in blocks) for blocks in held])
        self.exclusive = np.array([any(b.exclusive for b in blocks) for blocks in held])
        self.weights = np.array([float(sum(b.trainable_bytes for b in blocks)) for blocks in held])
        self.bytes = SpanArrays(facts, self.spans)
        self.cuts = np.array([(*Edges(facts).at_cuts(), (0, 0))[b] for b in borders], dtype=float)
        self.rates = self._rates()
        self.by_samples = Table(self, rows, by_turns=False)
        self.by_turns = Table(self, micro_batches, by_turns=True) if self.coupled.any() else self.by_samples

    def _rates(self) -> Array:
        """Bandwidth between any two devices, the slower direction."""
        names = [d.name for d in self.devices]
        way = np.array([[self.tables.transfer_s(a, b, 1.0) for b in names] for a in names])
        with np.errstate(divide="ignore"):
            found: Array = 1.0 / np.maximum(way, way.T)
        return found

    def span_sums(self, sums: Array) -> Array:
        """Differences of prefix sums over blocks, for every span."""
        places = np.array(self.borders)
        found: Array = sums[..., places[self.last]] - sums[..., places[self.first]]
        return found

    def slowest_within(self, start: int, stop: int) -> float:
        """Least bandwidth inside a group."""
        inside = self.rates[start:stop, start:stop]
        return float(inside[~np.eye(stop - start, dtype=bool)].min(initial=np.inf))


class Table:
    """Seconds and bytes of every span on every device, for each share from 0 to the whole: [device, share, span]."""

    def __init__(self, ground: Ground, total: int, *, by_turns: bool) -> None:
        self.total, self.least, self._ground, self._by_turns = total, 1 if by_turns else 2, ground, by_turns
        spans = len(ground.spans)
        self.forward = np.zeros((len(ground.devices), total + 1, spans))
        self.backward = np.zeros_like(self.forward)
        for d, device in enumerate(ground.devices):
            for share in range(1, total + 1):
                rows, part = (ground.rows, share / total) if by_turns else (share, 1.0)
                self.forward[d, share] = part * ground.span_sums(device.forward(rows))
                self.backward[d, share] = part * ground.span_sums(device.backward(rows))

    def caps(self, depth: int, *, shared: bool) -> Shares:
        """Largest share of each device that its memory allows, for every span: [device, span] (Eq. 3)."""
        ground = self._ground
        found = np.full((len(ground.devices), len(ground.spans)), self.total)
        for d in np.flatnonzero(np.isfinite(ground.limits)):
            found[d] = np.sum(self._need(int(d), depth, shared) <= ground.limits[d], axis=0)
        return found

    def _need(self, device: int, depth: int, shared: bool) -> Array:
        """Most bytes at each share from 1 on: [share, span]."""
        ground, tables = self._ground, self._ground.devices[device]
        flying = min(depth, ground.micro_batches)
        if self._by_turns:
            parts = {-(-flying * share // self.total) for share in range(1, self.total + 1)}
            known = {n: self._total(tables, ground.rows, n, shared) for n in parts}
            return np.array([known[-(-flying * share // self.total)] for share in range(1, self.total + 1)])
        return np.array([self._total(tables, rows, flying, shared) for rows in range(1, self.total + 1)])

    def _total(self, device: DeviceTables, rows: int, flying: int, shared: bool) -> Array:
        return self._ground.bytes.total(device, rows, flying, members=2 if shared else 1, waiting=WAITING)


def allocate(seconds: Array, caps: Shares, total: int, least: int) -> Shares:
    """Algorithm 1 for many groups at once: shares [..., member], 0 where a group cannot.

    `seconds[..., member, share]`, `caps[..., member]`. In proportion to capacity (Eq. 9) under the caps, remainders to
    the largest fractions; then single units go from the slowest member to the fastest with room, while the slowest
    gets faster.
    """
    members = caps.shape[-1]
    possible = (caps.sum(axis=-1) >= total) & (caps.min(axis=-1) >= least) & (total >= least * members)
    shares = np.where(possible[..., None], least, 0)
    capacity = 1.0 / np.maximum(seconds[..., total], 1e-12)
    for _ in range(members):  # in each pass somebody reaches its cap, or all is given
        room = np.where(shares < caps, capacity, 0.0)
        left = np.where(possible, total - shares.sum(axis=-1), 0)
        whole = np.maximum(np.where(room > 0, shares, 0).sum(axis=-1) + left, 0)[..., None]
        ideal = whole * room / np.maximum(room.sum(axis=-1, keepdims=True), 1e-300)
        raised = np.minimum(np.maximum(np.floor(ideal).astype(np.int64), shares), caps)
        over = raised.sum(axis=-1) > total  # the least of some leaves too little for the others' proportion
        shares = np.where(possible[..., None] & ~over[..., None], raised, shares)
    while True:
        left = np.where(possible, total - shares.sum(axis=-1), 0)
        if not left.any():
            break
        room = shares < caps
        fraction = np.where(room, total * capacity / capacity.sum(axis=-1, keepdims=True) - shares, -np.inf)
        shares = shares + (np.eye(members, dtype=np.int64)[np.argmax(fraction, axis=-1)] * (left > 0)[..., None])
    return _off_load(seconds, shares, caps, least)


def _off_load(seconds: Array, shares: Shares, caps: Shares, least: int) -> Shares:
    members, total = shares.shape[-1], seconds.shape[-1] - 1
    if members == 1:
        return shares
    unit = np.eye(members, dtype=np.int64)
    for _ in range(total * members):
        now = _at(seconds, shares)
        slowest = np.argmax(now, axis=-1)
        after = np.where(shares < caps, _at(seconds, np.minimum(shares + 1, total)), np.inf)
        np.put_along_axis(after, slowest[..., None], np.inf, axis=-1)
        taker = np.argmin(after, axis=-1)
        gain = np.take_along_axis(after, taker[..., None], -1) < np.take_along_axis(now, slowest[..., None], -1)
        gain &= np.take_along_axis(shares, slowest[..., None], -1) > least
        if not gain.any():
            break
        shares = shares + np.where(gain, unit[taker] - unit[slowest], 0)
    return shares


def _at(seconds: Array, shares: Shares) -> Array:
    found: Array = np.take_along_axis(seconds, shares[..., None], axis=-1)[..., 0]
    return found

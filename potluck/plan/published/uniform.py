"""A fleet as planners see it that take devices for equal and links for one: means over both."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from potluck.plan.cost.edges import Edges
from potluck.plan.cost.tables import Array, Tables
from potluck.types import COORDINATOR, ModelFacts, Profile


class Uniform:
    """Mean times of blocks [0, i) over all devices, and one bandwidth."""

    def __init__(self, facts: ModelFacts, profile: Profile, rows: int, micro_batches: int) -> None:
        self.facts, self.rows, self.micro_batches = facts, rows, micro_batches
        self.count = len(facts.blocks)
        self.devices = tuple(d.device.name for d in profile.devices)
        self.tables = Tables(profile)
        links = [link for link in profile.links if COORDINATOR not in (link.source, link.target)]
        rates = [link.bandwidth_bytes_s for link in links if link.bandwidth_bytes_s is not None]
        self.bandwidth = float(np.mean(rates)) if rates else float("inf")
        cuts = [*Edges(facts).at_cuts(), (0, 0)]
        self.out = np.array([forward for forward, _ in cuts], dtype=float)  # bytes per row over the cut before a block
        self.back = np.array([gradient for _, gradient in cuts], dtype=float)
        self.weights = np.concatenate([[0.0], np.cumsum([float(b.trainable_bytes) for b in facts.blocks])])
        exclusive = np.concatenate([[0], np.cumsum([b.exclusive for b in facts.blocks])])
        coupled = np.concatenate([[0], np.cumsum([b.coupled for b in facts.blocks])])
        self.exclusive = exclusive[None, :] > exclusive[:, None]  # [i, j]: blocks [i, j) have one
        self.coupled = coupled[None, :] > coupled[:, None]
        self.forward = lru_cache(maxsize=None)(self._forward)
        self.backward = lru_cache(maxsize=None)(self._backward)

    def _forward(self, rows: int) -> Array:
        """Mean seconds of the forward pass of blocks [0, i)."""
        found: Array = np.mean([t.forward(rows) for t in self.tables.devices.values()], axis=0)
        return found

    def _backward(self, rows: int) -> Array:
        """Mean seconds of the backward pass of blocks [0, i)."""
        found: Array = np.mean([t.backward(rows) for t in self.tables.devices.values()], axis=0)
        return found

    def all_reduce_s(self, members: int) -> Array:
        """Seconds of a ring all-reduce of the gradients of blocks [0, i)."""
        found: Array = 2 * (members - 1) / members * self.weights / self.bandwidth
        return found

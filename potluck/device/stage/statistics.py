"""Running statistics of a group, on the way to the member that merges them and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from potluck.compute.running_buffers import Statistic, Statistics
from potluck.errors import LinkError


def written(statistics: Statistics) -> list[torch.Tensor]:
    keys = sorted(statistics)
    index = torch.tensor([[*key, statistics[key].rows] for key in keys], dtype=torch.int64).reshape(-1, 3)
    return [index, *(statistics[key].flat for key in keys)]


def read(parts: Sequence[torch.Tensor | None], peer: str) -> Statistics:
    index, values = (parts[0], [p for p in parts[1:] if p is not None]) if parts else (None, [])
    if index is None or len(index) != len(parts) - 1 or len(values) != len(index):
        raise LinkError(f"damaged statistics arrived from {peer}; the link is broken")
    return {(m, kind): Statistic(v, rows) for (m, kind, rows), v in zip(index.tolist(), values, strict=True)}


def merged(told: Sequence[Mapping[tuple[int, int], Statistic]]) -> Statistics:
    """Those of everybody in a group."""
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

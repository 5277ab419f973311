"""Gradient accumulation over micro-batches, and the search for their fastest size."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

LEAST_TRIALS = 2  # passes of each size that count, after one that does not


@dataclass(frozen=True)
class Task:
    """A model to train on rows of some samples."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    labels: Tensor

    def backward(self, rows: slice, weight: float) -> float:
        """Add the gradient of the weighted mean loss over these rows; returns the weighted loss."""
        loss = self.loss(self.model(self.inputs[rows]), self.labels[rows]) * weight
        loss.backward()
        return loss.item()


def pieces(start: int, count: int, largest: int) -> list[slice]:
    """Rows from `start` on as the fewest slices of at most `largest`, of nearly equal size: none has a single row."""
    parts = -(-count // largest)
    bounds = [start + count * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def share(rank: int, world_size: int, batch: int) -> tuple[int, int]:
    """First row and number of rows of one rank: equal shares, the remainder spread."""
    first, last = batch * rank // world_size, batch * (rank + 1) // world_size
    return first, last - first


def accumulate(
    task: Task, rows: Sequence[slice], batch: int, scale: float = 1.0,
    quiet: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> float:  # fmt: skip
    """Add up the gradient of the mean over the batch, in this rank's rows; all but the last under `quiet`."""
    loss = 0.0
    for part in rows[:-1]:
        with quiet():
            loss += task.backward(part, scale * (part.stop - part.start) / batch)
    last = rows[-1]
    return loss + task.backward(last, scale * (last.stop - last.start) / batch)


def fastest(task: Task, sizes: Sequence[int], most: int, seconds: float) -> int:
    """The micro-batch size with the most samples per second, each tried for so long; leaves no gradients behind."""
    candidates = sorted({min(size, most) for size in sizes})
    if len(candidates) == 1:
        return candidates[0]
    rates = {size: _samples_per_s(task, size, seconds) for size in candidates}
    task.model.zero_grad()
    return max(rates, key=lambda size: rates[size])


def _samples_per_s(task: Task, size: int, seconds: float) -> float:
    task.backward(slice(0, size), 1.0)
    started, passes = time.perf_counter(), 0
    while passes < LEAST_TRIALS or time.perf_counter() - started < seconds:
        task.backward(slice(0, size), 1.0)
        passes += 1
    return passes * size / (time.perf_counter() - started)

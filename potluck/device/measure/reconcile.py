"""Blocks run one by one against the same blocks run as one stage: their times are scaled to what the stage took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from potluck.device.measure.bench import Bench, Rig
from potluck.profile.cells import only
from potluck.types import BlockProfile

_SAMPLES = 5  # of blocks together, at most: their median is steady
_LEAST, _MOST = 0.7, 1.3  # beyond that, something disturbed one of the two
_FAILS = (RuntimeError, ValueError, IndexError, MemoryError)  # too large for the device


@dataclass(frozen=True)
class Reconciled:
    """What running blocks together showed."""

    blocks: tuple[BlockProfile, ...]
    call_s: float  # of a call beside its blocks, with what it takes more after other work


def reconcile(
    rig: Rig, blocks: Sequence[BlockProfile], call_s: float, runs: Iterable[tuple[int, int]], rows: int, budget_s: float
) -> Reconciled:
    """The blocks with their times scaled, run by run, as far as time allows.

    Blocks were timed again and again, with caches full of them. In a pipeline messages, other devices of this machine
    and sleep stand between two calls; short stages take up to twice as long then.
    """
    deadline = time.monotonic() + budget_s
    found, colder_s = list(blocks), []
    for start, stop in dict.fromkeys(runs):
        cells = [only(block, rows) for block in blocks[start:stop]]
        apart = (sum(c.forward_s for c in cells) + call_s / 2, sum(c.backward_s for c in cells) + call_s / 2)
        if time.monotonic() + 3 * sum(apart) > deadline:
            break
        try:
            bench = Bench(rig, (start, stop))
            together = _time(bench.chunk, rows, deadline)
            if rig.device.type == "cpu":
                colder_s.append(max(0.0, sum(_time(_after_others(bench), rows, deadline)) - sum(together)))
        except _FAILS:
            continue
        forward, backward = (min(_MOST, max(_LEAST, t / max(a, 1e-9))) for t, a in zip(together, apart, strict=True))
        for i in range(start, stop):
            found[i] = _scaled(blocks[i], forward, backward)
    return Reconciled(tuple(found), call_s + min(colder_s, default=0.0))


def _after_others(bench: Bench) -> Callable[[int, int], tuple[float, float]]:
    return lambda rows, count: bench.after_others(rows)


def _time(run: Callable[[int, int], tuple[float, float]], rows: int, deadline: float) -> tuple[float, float]:
    """Median seconds of forward and backward, the first run left out."""
    run(rows, 1)
    samples = [run(rows, 1)]
    while len(samples) < _SAMPLES and time.monotonic() < deadline:
        samples.append(run(rows, 1))
    return statistics.median(f for f, _ in samples), statistics.median(b for _, b in samples)


def _scaled(block: BlockProfile, forward: float, backward: float) -> BlockProfile:
    timings = (replace(t, forward_s=t.forward_s * forward, backward_s=t.backward_s * backward) for t in block.timings)
    return replace(block, timings=tuple(timings))

"""FTPipeHD's partition, and HetPipe's virtual workers: cuts for devices in a given order, by the slowest stage or link.

Both know that devices differ, by one figure each, and ignore memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from potluck.plan.cost.edges import Edges
from potluck.plan.cost.tables import Array, Tables
from potluck.plan.groups import equal_plan
from potluck.plan.published.uniform import Uniform
from potluck.types import ModelFacts, Plan, Profile

Cuts = list[tuple[int, int]]


def ftpipehd(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """One stage per device in fleet order, cut so that the slowest stage or link is fastest.

    A device is known by its capacity: how long it takes for the whole model, compared with the first one. Where it
    differs from the paper: rounds are synchronous, and with more devices than blocks the last ones stay idle.
    """
    tables = Tables(profile)
    names = [d.device.name for d in profile.devices][: len(facts.blocks)]
    steps = [t.forward(micro_batch_size) + t.backward(micro_batch_size) for t in (tables.devices[n] for n in names)]
    costs = [steps[0] * (step[-1] / steps[0][-1]) for step in steps]
    sizes = [out for out, _ in Edges(facts).at_cuts()]
    links = [
        np.array([2 * tables.transfer_s(a, b, micro_batch_size * size) for size in sizes]) for a, b in pairwise(names)
    ]
    cuts, _ = slowest_fastest(costs, links)
    runs = [(blocks, (name,)) for blocks, name in zip(cuts, names, strict=True)]
    return equal_plan(runs, facts, micro_batch_size, micro_batches)


def hetpipe(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """Virtual workers of the same mix of devices, each a pipeline; the number of them that makes rounds shortest.

    Devices are sorted by speed and dealt out, so that every virtual worker has one of each kind; those that are left
    over stay idle. Where it differs from the paper: all virtual workers are cut at the same places, which makes the
    devices at one place a group that takes equal turns; gradients are summed among them once a round, and nobody runs
    ahead on old weights; memory is not looked at.
    """
    seen = Uniform(facts, profile, micro_batch_size, micro_batches)
    by_speed = sorted(seen.devices, key=lambda d: seen.tables.devices[d].step_s((0, seen.count), micro_batch_size))
    best: tuple[float, int, Cuts] | None = None
    for workers in range(1, min(len(by_speed), micro_batches) + 1):
        if workers > 1 and seen.exclusive.any():
            break
        cuts, seconds = worker_cuts(seen, by_speed, workers)
        if best is None or seconds < best[0]:
            best = (seconds, workers, cuts)
    if best is None:
        raise ValueError("one virtual worker is always possible")
    _, workers, cuts = best
    runs = [(blocks, tuple(by_speed[p * workers : (p + 1) * workers])) for p, blocks in enumerate(cuts)]
    return equal_plan(runs, facts, micro_batch_size, micro_batches)


def worker_cuts(seen: Uniform, by_speed: Sequence[str], workers: int) -> tuple[Cuts, float]:
    """Where to cut for so many virtual workers, and seconds per micro-batch of the slowest stage or link."""
    stages = min(len(by_speed) // workers, seen.count)
    reduce = seen.all_reduce_s(workers) / seen.micro_batches
    costs = []
    for p in range(stages):
        group = [seen.tables.devices[d] for d in by_speed[p * workers : (p + 1) * workers]]
        step = np.mean([t.forward(seen.rows) + t.backward(seen.rows) for t in group], axis=0)
        costs.append(step / workers + reduce)
    link = seen.rows * (seen.out + seen.back)[: seen.count] / seen.bandwidth / workers
    return slowest_fastest(costs, [link] * (stages - 1))


def slowest_fastest(costs: Sequence[Array], links: Sequence[Array]) -> tuple[Cuts, float]:
    """A run of blocks for each stage in order, such that the slowest stage or link is fastest, and its seconds.

    `costs[p][i]` are the seconds of blocks [0, i) on stage p, `links[p][i]` those of the link after stage p if it is
    cut before block i.
    """
    count, stages = len(costs[0]) - 1, len(costs)
    best = np.where(np.arange(count + 1) > 0, costs[0], np.inf)
    starts = []
    for p in range(1, stages):
        waiting = np.maximum(best, np.append(links[p - 1], np.inf))  # [i]: with a cut there
        tried = np.maximum(waiting[:, None], costs[p][None, :] - costs[p][:, None])
        tried[np.tril_indices(count + 1)] = np.inf
        start = np.argmin(tried, axis=0)
        best = tried[start, np.arange(count + 1)]
        starts.append(start)
    cuts, stop = [], count
    for start in reversed(starts):
        cuts.append((int(start[stop]), stop))
        stop = int(start[stop])
    return [(0, stop), *reversed(cuts)], float(best[count])

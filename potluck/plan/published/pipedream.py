"""PipeDream's planner: stages, replicated or not, such that the slowest stage or link is as fast as can be.

It takes devices for equal and links for one bandwidth, and ignores memory. Where it differs from the paper: gradients
are summed once a round and not once a micro-batch, so their time is divided by the micro-batches; the pipeline is
flushed at the end of a round; and the network has one level.
"""

from __future__ import annotations

import numpy as np

from potluck.plan.cost.tables import Array
from potluck.plan.groups import Run, equal_plan
from potluck.plan.published.uniform import Uniform
from potluck.types import ModelFacts, Plan, Profile


def pipedream(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """The plan whose slowest stage or link is fastest, on as many devices as can be used, in fleet order."""
    seen = Uniform(facts, profile, micro_batch_size, micro_batches)
    return equal_plan(in_order(best_runs(seen), seen.devices), facts, micro_batch_size, micro_batches)


def in_order(runs: list[tuple[int, int, int]], devices: tuple[str, ...]) -> list[Run]:
    """Stages with devices, taken as they come."""
    found, used = [], 0
    for start, stop, members in runs:
        found.append(((start, stop), devices[used : used + members]))
        used += members
    return found


def stage_s(seen: Uniform, members: int) -> Array:
    """[i, j] → seconds per micro-batch of blocks [i, j) on so many devices; infinite where they cannot share."""
    step = seen.forward(seen.rows) + seen.backward(seen.rows)
    reduce = seen.all_reduce_s(members) / seen.micro_batches
    found: Array = np.maximum((step[None, :] - step[:, None]) / members, reduce[None, :] - reduce[:, None])
    found[np.tril_indices(seen.count + 1)] = np.inf
    if members > 1:
        found[seen.exclusive] = np.inf
    return found


def link_s(seen: Uniform) -> Array:
    """Seconds per micro-batch of the link before each block, both directions."""
    found: Array = seen.rows * (seen.out + seen.back) / seen.bandwidth
    return found


def best_runs(seen: Uniform) -> list[tuple[int, int, int]]:
    """(start, stop, devices) of each stage of the best plan.

    best[m][j]: slowest stage or link when blocks [0, j) are on exactly m devices; a last stage [i, j) on r of them is
    tried for all i and r.
    """
    count, most = seen.count, len(seen.devices)
    limit = min(most, seen.micro_batches)
    stages = {r: stage_s(seen, r) for r in range(1, limit + 1)}
    links = link_s(seen)
    links[0] = 0.0
    best = np.full((most + 1, count + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((most + 1, count + 1, 2), dtype=int)
    for m in range(1, most + 1):
        for r in range(1, min(limit, m) + 1):
            tried = np.maximum(np.maximum(best[m - r], links)[:, None], stages[r])  # [i, j]
            i = np.argmin(tried, axis=0)
            value = tried[i, np.arange(count + 1)]
            better = value < best[m]
            best[m, better] = value[better]
            choice[m, better] = np.stack([i, np.full_like(i, r)], axis=1)[better]
    used = max(m for m in range(1, most + 1) if np.isfinite(best[m, count]))
    return _walk_back(choice, used, count)


def _walk_back(
    choice: np.ndarray[tuple[int, int, int], np.dtype[np.int_]], m: int, j: int
) -> list[tuple[int, int, int]]:
    runs = []
    while j:
        i, r = (int(x) for x in choice[m, j])
        runs.append((i, j, r))
        m, j = m - r, i
    return runs[::-1]

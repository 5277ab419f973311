"""Simple plans: a default that needs no profile, and something to compare the planner with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from potluck.errors import PlanError
from potluck.types import DeviceSpec, Member, ModelFacts, Plan, Stage


def even_plan(facts: ModelFacts, devices: Sequence[DeviceSpec], micro_batch_size: int, micro_batches: int) -> Plan:
    """One stage per device, in the order given, cut so that the slowest stage is as fast as can be.

    Without a profile, a block's load is the bytes it touches: its weights, and what it keeps for the backward pass of
    one micro-batch. With more devices than blocks, the fastest are used.
    """
    if not devices or not facts.blocks:
        raise PlanError(f"plan: {len(devices)} devices for {len(facts.blocks)} blocks; give at least one of each")
    by_speed = sorted(range(len(devices)), key=lambda i: -devices[i].speed)
    used = [devices[i] for i in sorted(by_speed[: len(facts.blocks)])]
    loads = [block.stash_bytes * micro_batch_size + block.weight_bytes for block in facts.blocks]
    stages = tuple(
        Stage(blocks=blocks, group=(Member(device=device.name, share=micro_batches),))
        for blocks, device in zip(balanced_cuts(loads, [d.speed for d in used]), used, strict=True)
    )
    return Plan(micro_batch_size=micro_batch_size, micro_batches=micro_batches, stages=stages)


def balanced_cuts(loads: Sequence[int], speeds: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """Ranges of blocks, one non-empty one for each speed in order, with the least possible max of load / speed."""
    n = len(loads)
    if not 0 < len(speeds) <= n:
        raise ValueError(f"{n} blocks cannot be cut into {len(speeds)} stages")
    before = [0, *accumulate(loads)]
    infinite = float("inf")
    best = [0.0] + [infinite] * n  # best[j]: slowest stage when the stages so far hold blocks [0, j)
    starts: list[list[int]] = []  # of the last stage, for each stage and j
    for k, speed in enumerate(speeds):
        found, start = [infinite] * (n + 1), [0] * (n + 1)
        for j in range(k + 1, n - (len(speeds) - k - 1) + 1):
            for i in range(j - 1, k - 1, -1):
                last = (before[j] - before[i]) / speed
                if last >= found[j]:
                    break  # a longer last stage is only slower
                if max(best[i], last) < found[j]:
                    found[j], start[j] = max(best[i], last), i
        best, starts = found, [*starts, start]
    cuts, stop = [], n
    for start in reversed(starts):
        cuts.append((start[stop], stop))
        stop = start[stop]
    return tuple(reversed(cuts))

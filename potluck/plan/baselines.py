"""Simple plans: a default that needs no profile, and planners to compare ours with.

What a planner ignores (memory, order, that devices differ) stays ignored: its plan is returned also where it does not
fit. Every plan can be run: shares are valid, and devices for which there is no work stay idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from msgspec.structs import replace

from potluck.errors import PlanError
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.groups import equal_plan, proportional_shares, stage_by
from potluck.plan.published.asteroid import asteroid
from potluck.plan.published.chains import ftpipehd, hetpipe
from potluck.plan.published.dapple import dapple
from potluck.plan.published.pipedream import pipedream
from potluck.plan.published.uniform import Uniform
from potluck.types import DeviceSpec, Member, ModelFacts, Plan, Profile, Stage


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


def balanced_cuts(loads: Sequence[float], speeds: Sequence[float]) -> tuple[tuple[int, int], ...]:
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


def single_device(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """Everything on the fastest device that has the memory for it; if none has, on the fastest."""
    tables = Tables(profile)
    whole = (0, len(facts.blocks))
    by_speed = sorted(profile.devices, key=lambda d: tables.devices[d.device.name].step_s(whole, micro_batch_size))
    plans = [equal_plan([(whole, (d.device.name,))], facts, micro_batch_size, micro_batches) for d in by_speed]
    for plan, found in zip(plans, by_speed, strict=True):
        limit, name = found.device.memory_bytes, found.device.name
        if not limit or peak_bytes(plan, facts, tables=tables)[name].total <= limit:
            return plan
    return plans[0]


def data_parallel(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """The whole model on every device, with equal shares by turns; those for whom there is no turn stay idle."""
    _must_be_shared(facts, "data-parallel")
    names = tuple(d.device.name for d in profile.devices)[:micro_batches]
    return equal_plan([((0, len(facts.blocks)), names)], facts, micro_batch_size, micro_batches)


def eddl(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """Data parallel for unequal devices, as EDDL has it: each takes rows in proportion to its speed.

    By turns where blocks may not be cut by samples. With more devices than there is work for, the slowest stay idle.
    """
    _must_be_shared(facts, "eddl")
    tables, whole = Tables(profile), (0, len(facts.blocks))
    coupled = any(b.coupled for b in facts.blocks) or micro_batch_size < 4
    least, total = (1, micro_batches) if coupled else (2, micro_batch_size)
    speeds = {n: 1.0 / max(t.step_s(whole, micro_batch_size), 1e-12) for n, t in tables.devices.items()}
    fastest = sorted(speeds, key=lambda n: -speeds[n])[: total // least]
    used = [n for n in speeds if n in fastest]
    shares = proportional_shares([speeds[n] for n in used], total, least)
    stage = stage_by(whole, used, shares, "turns" if coupled else "samples", None, micro_batches)
    return Plan(micro_batch_size=micro_batch_size, micro_batches=micro_batches, stages=(stage,))


def even_pipeline(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """One stage per device in fleet order, as if all were equal; one forward and one backward in turn (1F1B)."""
    seen = Uniform(facts, profile, micro_batch_size, micro_batches)
    sums = seen.forward(micro_batch_size) + seen.backward(micro_batch_size)
    names = seen.devices[: seen.count]
    cuts = balanced_cuts([float(x) for x in np.diff(sums)], [1.0] * len(names))
    runs = [(blocks, (name,)) for blocks, name in zip(cuts, names, strict=True)]
    return equal_plan(runs, facts, micro_batch_size, micro_batches)


def gpipe(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """The same stages, with all forwards before the first backward."""
    plan = even_pipeline(facts, profile, micro_batch_size, micro_batches)
    count = len(plan.stages)
    stages = tuple(replace(s, depth=max(micro_batches, count - p)) for p, s in enumerate(plan.stages))
    return replace(plan, stages=stages)


def _must_be_shared(facts: ModelFacts, name: str) -> None:
    for block in facts.blocks:
        if block.exclusive:
            why = f"block {block.index} ({block.label}) cannot be shared"
            raise PlanError(f"plan: {name}: {why}; choose a planner that makes stages of one device")


Planner = Callable[[ModelFacts, Profile, int, int], Plan]

PLANNERS: dict[str, Planner] = {
    "single": single_device,
    "data-parallel": data_parallel,
    "eddl": eddl,
    "gpipe": gpipe,
    "1f1b": even_pipeline,
    "ftpipehd": ftpipehd,
    "pipedream": pipedream,
    "dapple": dapple,
    "hetpipe": hetpipe,
    "asteroid": asteroid,
}

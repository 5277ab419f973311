"""Groups whose shares follow a simple rule: equal, or in proportion. And how deep 1F1B must be to keep them busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from potluck.types import Block, Member, ModelFacts, Plan, Sharing, Stage

Run = tuple[tuple[int, int], tuple[str, ...]]  # blocks and devices of a stage


def equal_shares(total: int, count: int) -> tuple[int, ...]:
    """Shares that add up to `total` and differ by at most one, larger ones first."""
    each, more = divmod(total, count)
    return tuple(each + (place < more) for place in range(count))


def proportional_shares(weights: Sequence[float], total: int, least: int) -> tuple[int, ...]:
    """Shares that add up to `total`, in proportion to the weights but at least `least`; largest remainders first."""
    if total < least * len(weights):
        raise ValueError(f"{total} cannot give {len(weights)} members {least} each")
    shares, free = [least] * len(weights), list(range(len(weights)))
    while True:  # who is raised to the least drops out; the others share the rest
        rest = total - least * (len(weights) - len(free))
        whole = sum(weights[d] for d in free)
        ideal = {d: rest * weights[d] / whole for d in free}
        low = [d for d in free if ideal[d] < least]
        if not low or len(low) == len(free):
            break
        free = [d for d in free if d not in low]
    for d in free:
        shares[d] = int(ideal[d])
    by_remainder = sorted(free, key=lambda d: shares[d] - ideal[d])
    for d in by_remainder[: total - sum(shares)]:
        shares[d] += 1
    return tuple(shares)


def most_members(blocks: Sequence[Block], rows: int, micro_batches: int, sharing: Sharing) -> int:
    """How many devices may share these blocks: each has 2 rows or 1 turn at least, and some blocks are never shared."""
    if any(b.exclusive for b in blocks):
        return 1
    if sharing == "turns":
        return micro_batches
    return 1 if any(b.coupled for b in blocks) else max(1, rows // 2)


def uncoupled(facts: ModelFacts) -> ModelFacts:
    """The model for planners that may cut micro-batches of coupled blocks: BatchNorm then sees each part by itself."""
    return replace(facts, blocks=tuple(replace(block, coupled=False) for block in facts.blocks))


def shareable(facts: ModelFacts, batchnorm: Literal["refuse", "local"]) -> ModelFacts:
    """The model as planners may share it: where the job allows local BatchNorm, by samples throughout."""
    return uncoupled(facts) if batchnorm == "local" else facts


def stage_by(
    blocks: tuple[int, int],
    devices: Sequence[str],
    shares: Sequence[int],
    sharing: Sharing,
    depth: int | None,
    micro_batches: int,
) -> Stage:
    """A stage; one device alone has every micro-batch whole."""
    if len(devices) == 1:
        return Stage(blocks=blocks, group=(Member(device=devices[0], share=micro_batches),), depth=depth)
    group = tuple(Member(device=d, share=s) for d, s in zip(devices, shares, strict=True))
    return Stage(blocks=blocks, group=group, sharing=sharing, depth=depth)


def equal_plan(
    runs: Sequence[Run], facts: ModelFacts, rows: int, micro_batches: int, sharing: Sharing = "turns"
) -> Plan:
    """Stages whose members have equal shares: by turns, or by samples where the blocks allow it."""
    kinds: list[Sharing] = [
        "samples" if sharing == "samples" and most_members(_held(facts, blocks), rows, 1, "samples") > 1 else "turns"
        for blocks, _ in runs
    ]
    by_turns = [len(devices) if kind == "turns" else 1 for (_, devices), kind in zip(runs, kinds, strict=True)]
    stages = tuple(
        stage_by(
            blocks,
            devices,
            equal_shares(rows if kind == "samples" else micro_batches, len(devices)),
            kind,
            depth,
            micro_batches,
        )
        for (blocks, devices), kind, depth in zip(runs, kinds, busy_depths(by_turns, micro_batches), strict=True)
    )
    return Plan(micro_batch_size=rows, micro_batches=micro_batches, stages=stages)


def busy_depths(members: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    """Depths with which every member of every group by turns has a micro-batch under way: 1F1B for groups.

    With single devices these are the usual ones, the number of stages to the end.
    """
    count = len(members)
    return tuple(max(count - p, min(sum(members[p:]), micro_batches)) for p in range(count))


def _held(facts: ModelFacts, blocks: tuple[int, int]) -> tuple[Block, ...]:
    return facts.blocks[slice(*blocks)]

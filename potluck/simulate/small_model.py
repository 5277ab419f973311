"""The model of a simulated run: a few blocks, and plans for it."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.types import DEFAULT_SCHEDULE, Member, Plan, Stage

BLOCKS, MICRO_BATCHES, ROWS = 6, 4, 8
TIED = "tied"  # a weight that the first and the last block share


class SmallModel:
    """A model of a few blocks, two of which share a weight."""

    def __init__(self) -> None:
        self.sizes: Mapping[str, int] = {**{f"b{i}": 10 for i in range(BLOCKS)}, TIED: 30}

    def names(self, plan: Plan, stage: int) -> frozenset[str]:
        blocks = range(*plan.stages[stage].blocks)
        tied = {TIED} if 0 in blocks or BLOCKS - 1 in blocks else set()
        return frozenset({f"b{i}" for i in blocks} | tied)


def even(devices: list[str], stages: int, schedule: str = DEFAULT_SCHEDULE) -> Plan:
    """A plan of so many stages, with groups where there are more devices."""
    cuts = [round(i * BLOCKS / stages) for i in range(stages + 1)]
    groups = [devices[i::stages] for i in range(stages)]
    made = []
    for index, group in enumerate(groups):
        shares = [ROWS // len(group) + (i < ROWS % len(group)) for i in range(len(group))]
        members = tuple(Member(device=d, share=s) for d, s in zip(group, shares, strict=True))
        if len(group) == 1:
            members = (Member(device=group[0], share=MICRO_BATCHES),)
        blocks = (cuts[index], cuts[index + 1])
        made.append(Stage(blocks=blocks, group=members, sharing="turns" if len(group) == 1 else "samples"))
    return Plan(micro_batch_size=ROWS, micro_batches=MICRO_BATCHES, stages=tuple(made), schedule=schedule)


def seconds(plan: Plan) -> float:
    """Of a round, more or less."""
    return max((stage.blocks[1] - stage.blocks[0]) / len(stage.group) for stage in plan.stages)

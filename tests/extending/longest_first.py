"""A planner of one's own: a pipeline in which the fastest device comes first and has the longest stage."""

from __future__ import annotations

from potluck.plan.cost.tables import Tables
from potluck.plan.named_planners import register_planner
from potluck.types import Member, ModelFacts, Plan, Profile, Stage


def longest_first(facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int) -> Plan:
    """One stage for each device, the fastest first, with blocks in proportion to how fast it is."""
    whole, tables = (0, len(facts.blocks)), Tables(profile).devices
    seconds = {name: table.step_s(whole, micro_batch_size) for name, table in tables.items()}
    used = sorted(seconds, key=lambda name: seconds[name])[: len(facts.blocks)]
    stages, start = [], 0
    for place, name in enumerate(used):
        left, following = used[place:], len(used) - place - 1
        part = (1 / seconds[name]) / sum(1 / seconds[other] for other in left)
        blocks = round(part * (len(facts.blocks) - start))
        stop = start + min(max(1, blocks), len(facts.blocks) - start - following)  # each has one block at least
        stages.append(Stage(blocks=(start, stop), group=(Member(device=name, share=micro_batches),)))
        start = stop
    return Plan(micro_batch_size=micro_batch_size, micro_batches=micro_batches, stages=tuple(stages))


register_planner("longest-first", longest_first)  # `potluck plan job.py --planner longest-first --out plan.json`

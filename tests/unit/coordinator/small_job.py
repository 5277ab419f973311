"""A job small enough to be prepared in a moment, and plans for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.job.job import Job
from potluck.job.optimizers import SGD
from potluck.types import Member, Plan, Stage

SAMPLES = 12


def small_job(**more: Any) -> Job:
    """Three rounds of four samples, in micro-batches of two."""
    data = torch.arange(36.0).reshape(SAMPLES, 3) / 36, torch.arange(SAMPLES) ** 2 % 7 % 2
    return Job(
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), loss=functional.cross_entropy,
        data=data, epochs=1, **{"optimizer": SGD(lr=0.1), "batch_size": 4, "micro_batch_size": 2, **more},
    )  # fmt: skip


@cache
def prepared() -> PreparedJob:
    """The job with its own data for evaluation."""
    return prepare_job(small_job(eval_data=small_job().data))


def plan_of(*groups: tuple[str, ...]) -> Plan:
    """A stage for each group of devices, which share it by samples; the last has all blocks that are left."""
    blocks = len(prepared().facts.blocks)
    ends = [*range(1, len(groups)), blocks]
    stages = [
        Stage(
            blocks=(start, stop), sharing="samples" if len(group) > 1 else "turns",
            group=tuple(Member(device=d, share=1 if len(group) > 1 else 2) for d in group),
        )
        for start, stop, group in zip([0, *ends[:-1]], ends, groups, strict=True)
    ]  # fmt: skip
    return Plan(micro_batch_size=2, micro_batches=2, stages=tuple(stages))

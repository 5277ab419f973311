"""What is trained while devices are lost: a network with BatchNorm, one with tied weights and dropout, a large one."""

from __future__ import annotations

import torch
from torch import nn

import potluck
from benchmarks.workloads import gpt, plain
from potluck.types import Member, ModelFacts, Plan, Stage
from tests.models.case import Case
from tests.models.zoo_jobs import with_dropout

MICRO_BATCH, MICRO_BATCHES = 4, 6


def small_gpt() -> Case:
    """A decoder of 0.8 million parameters."""
    return gpt("small_gpt", words=512, length=32, width=128, layers=4)


def job_of(name: str) -> potluck.Job:
    """A job by name."""
    case = small_gpt() if name == "small_gpt" else plain(name)
    if name == "small_gpt":
        optimizer: potluck.job.optimizers.Optimizer = potluck.AdamW(lr=1e-3, weight_decay=0.1)
        return _job(case, optimizer, clip_norm=0.5, dropout=True, dtype=torch.float64)
    # In float64 what another order of adding changes stays far below what anything lost would.
    dtype = torch.float64 if name == "mobilenet_v2" else torch.float32
    return _job(case, potluck.SGD(lr=0.01, momentum=0.9), dtype=dtype)


def _job(
    case: Case, optimizer: potluck.job.optimizers.Optimizer, *, clip_norm: float | None = None, dropout: bool = False,
    dtype: torch.dtype = torch.float32,
) -> potluck.Job:  # fmt: skip
    batch = MICRO_BATCH * MICRO_BATCHES

    def make() -> nn.Module:
        model = case.make_model().to(dtype)
        return with_dropout(model) if dropout else model

    inputs, labels = case.example(4 * batch, 0, dtype)
    return potluck.Job(
        model=make, loss=case.loss, optimizer=optimizer, data=(inputs, labels), batch_size=batch,
        micro_batch_size=MICRO_BATCH, rounds=12, clip_norm=clip_norm, checkpoint_every=10**9, seed=5,
    )  # fmt: skip


def plan_of(name: str, facts: ModelFacts) -> Plan:
    """The plan to begin with: groups by turns for the network with BatchNorm, a chain for the others."""
    groups: tuple[tuple[tuple[str, int], ...], ...]
    parts: tuple[float, ...]
    if name == "mobilenet_v2":
        groups = ((("nx", 6),), (("tx2-1", 3), ("tx2-2", 3)), (("nano-1", 2), ("nano-2", 2), ("nano-3", 2)))
        parts = (0.45, 0.8, 1.0)
    else:
        groups = tuple(((device, MICRO_BATCHES),) for device in ("nx", "tx2-1", "tx2-2", "nano-1"))
        parts = (0.45, 0.7, 0.9, 1.0)
    count = len(facts.blocks)
    cuts = [0, *(min(count - len(parts) + 1 + i, max(i + 1, round(count * p))) for i, p in enumerate(parts))]
    cuts[-1] = count
    stages = (
        Stage(blocks=(cuts[i], cuts[i + 1]), group=tuple(Member(device=d, share=s) for d, s in group))
        for i, group in enumerate(groups)
    )
    return Plan(micro_batch_size=MICRO_BATCH, micro_batches=MICRO_BATCHES, stages=tuple(stages))

"""Zoo cases as jobs, and plans for them: what the exactness benchmark and the equality tests run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import potluck
from potluck.job.learning_rates import Cosine
from potluck.job.optimizers import Optimizer
from potluck.plan.baselines import even_plan
from potluck.types import DeviceSpec, Member, ModelFacts, Plan, Sharing, Stage
from tests.models.case import Case

MICRO_BATCH = 4
MICRO_BATCHES = 4


class CaseSamples:
    """A case's example batch as a map-style data set."""

    def __init__(self, inputs: Any, labels: torch.Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self._inputs, dict):
            return {k: v[index] for k, v in self._inputs.items()}, self._labels[index]
        if isinstance(self._inputs, tuple):
            return tuple(v[index] for v in self._inputs), self._labels[index]
        return self._inputs[index], self._labels[index]


def with_dropout(model: nn.Module, p: float = 0.1) -> nn.Module:
    """The model with dropout behind every normalisation layer (behind every Linear where there is none)."""
    norms = [m for m in model.modules() if "norm" in type(m).__name__.lower() and not list(m.children())]
    for module in norms or [m for m in model.modules() if isinstance(m, nn.Linear)]:
        module.register_forward_hook(lambda m, _, out: F.dropout(out, p, m.training))
    return model


def case_job(
    case: Case, rounds: int, *, hard: bool = False, dtype: torch.dtype = torch.float32, micro_batch: int = MICRO_BATCH
) -> potluck.Job:
    """A job on the case. `hard`: AdamW with groups, clipping, a schedule with warm-up, and dropout."""
    batch = micro_batch * MICRO_BATCHES
    inputs, labels = case.example(batch * 2 + batch // 2 + 1, 7, dtype)  # the last round of an epoch is a short one
    optimizer: Optimizer = potluck.SGD(lr=0.05, momentum=0.9)
    if hard:
        no_decay = potluck.ParamGroup(match=(":norms", ":biases"), overrides={"weight_decay": 0.0})
        optimizer = potluck.AdamW(lr=1e-3, weight_decay=0.1, groups=(no_decay,))

    def make() -> nn.Module:
        model = case.make_model().to(dtype)
        return with_dropout(model) if hard else model

    return potluck.Job(
        model=make,
        loss=case.loss,
        optimizer=optimizer,
        data=CaseSamples(inputs, labels),
        batch_size=batch,
        micro_batch_size=micro_batch,
        rounds=rounds,
        seed=3,
        schedule=Cosine(total=rounds, warmup=1) if hard else None,
        clip_norm=0.5 if hard else None,
        loss_weight=case.loss_weight,
        checkpoint_every=rounds,
    )


def devices(count: int) -> tuple[DeviceSpec, ...]:
    return tuple(DeviceSpec(name=f"d{i}") for i in range(count))


def cut(facts: ModelFacts, stages: int, micro_batch: int = MICRO_BATCH, *, deep: bool = False) -> Plan:
    """One device per stage, balanced; `deep`: the deepest warm-up allowed, and weight gradients put off."""
    plan = even_plan(facts, devices(stages), micro_batch, MICRO_BATCHES)
    if not deep:
        return plan
    count = len(plan.stages)
    return _with_stages(plan, [_stage(s, depth=2 * (count - i) - 1) for i, s in enumerate(plan.stages)])


def grouped(
    facts: ModelFacts, sharing: Sharing, shares: tuple[int, int], micro_batch: int = MICRO_BATCH, *, first: bool
) -> Plan:
    """Two stages, one of them shared by two devices with uneven shares."""
    base = even_plan(facts, devices(2), micro_batch, MICRO_BATCHES)
    names = iter(d.name for d in devices(3))
    stages = []
    for index, stage in enumerate(base.stages):
        if (index == 0) == first:
            group = tuple(Member(device=next(names), share=s) for s in shares)
            stages.append(Stage(blocks=stage.blocks, group=group, sharing=sharing, late_weights=1))
        else:
            stages.append(Stage(blocks=stage.blocks, group=(Member(device=next(names), share=MICRO_BATCHES),)))
    return _with_stages(base, stages)


def _stage(stage: Stage, depth: int) -> Stage:
    return Stage(blocks=stage.blocks, group=stage.group, sharing=stage.sharing, depth=depth, late_weights=2)


def _with_stages(plan: Plan, stages: list[Stage]) -> Plan:
    return Plan(micro_batch_size=plan.micro_batch_size, micro_batches=plan.micro_batches, stages=tuple(stages))

"""The oracle: the same program, uncut, in one process. What a cut run must reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from potluck.compute.runner import Rows, StageRunner, StageState
from potluck.control.commit import Judgement, judge
from potluck.job.optimizers import Optimizer
from potluck.plan.exactness import why_changed_on_the_way
from potluck.plan.schedule.holders import turns
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.program.layout import PlanLayout
from potluck.program.program import ProgramPair
from potluck.tensors.model_state import buffer_names, trainable_names
from potluck.types import Plan
from potluck.uncut.chain import StageChain
from potluck.wire.messages import LossPart, Ready

_CPU = torch.device("cpu")


Whole = TypeVar("Whole", StageRunner, StageChain)  # a program with its state, in one piece or in those of a plan


class Reference(Generic[Whole]):
    """Trains a whole program on one device, micro-batch by micro-batch.

    Floating-point addition depends on its order. Where a plan gives a stage's micro-batches to several devices by
    turns, each adds up its own before they are added together; with `lanes`, the reference adds in that order too.
    """

    def __init__(self, stage: Whole, programs: ProgramPair, clip_norm: float | None, lanes: PlanLayout | None) -> None:
        self.stage: Whole = stage
        self.programs, self.clip_norm, self._layout = programs, clip_norm, lanes
        self.order = trainable_names(programs)
        self._inputs = {s.name: s.id for s in programs.train.sources if s.kind == "input"}

    def round(
        self, number: int, micro_batches: Sequence[tuple[dict[str, torch.Tensor], torch.Tensor]], lr_scale: float = 1.0
    ) -> Judgement:
        """Trains one round of (feeds, loss weights) and commits it if its numbers are finite."""
        total = float(sum(w.double().sum() for _, w in micro_batches))
        sums: dict[tuple[str, str], torch.Tensor] = {}
        losses = []
        for j, (feeds, weights) in enumerate(micro_batches):
            rows = Rows(number, j, 0, len(weights))
            scale = float(weights.double().sum()) / total
            self.stage.forward(rows, {i: feeds[n] for n, i in self._inputs.items()}, {}, scale)
            loss = self.stage.loss(number, j)
            losses.append(LossPart(j, 0, loss if loss is not None else 0.0, scale))
            self.stage.backward(number, j, {})
            if self._layout is not None:
                self._to_lanes(self._layout, sums, (number, j), len(micro_batches))
        if self._layout is not None:
            self._add_lanes(self._layout, sums, number)
        norms = self.stage.squared_norms(number, self.order)
        judgement = judge(
            {"one": Ready(round=number, losses=tuple(losses), squared_norms=norms)}, self.order, self.clip_norm, 1
        )
        if judgement.kind == "commit":
            self.stage.commit(number, lr_scale, judgement.clip)
        else:
            self.stage.abort(number)
        return judgement

    def _to_lanes(
        self, layout: PlanLayout, sums: dict[tuple[str, str], torch.Tensor], which: tuple[int, int], count: int
    ) -> None:
        number, j = which
        for name, gradient in self.stage.gradients(number).items():
            if gradient is None:
                continue
            stage = layout.plan.stages[layout.owner[name]]
            shared = len(stage.group) > 1 and stage.sharing == "turns"
            key = (name, turns(stage, count)[j] if shared else stage.group[0].device)
            sums[key] = gradient if key not in sums else sums[key] + gradient
        self.stage.set_gradients(number, dict.fromkeys(self.stage.trainable))

    def _add_lanes(self, layout: PlanLayout, sums: dict[tuple[str, str], torch.Tensor], number: int) -> None:
        for name in (n for n in self.stage.trainable if n in layout.owner):
            group = layout.plan.stages[layout.owner[name]].group
            parts = [sums[name, m.device] for m in group if (name, m.device) in sums]
            if parts:
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                self.stage.set_gradients(number, {name: total})


class UncutRun(Reference[StageRunner]):
    """Trains the program in one piece."""

    def __init__(
        self, programs: ProgramPair, state: dict[str, torch.Tensor], optimizer: Optimizer, *, seed: int,
        clip_norm: float | None, lanes: Plan | None = None, device: torch.device = _CPU, staleness: int = 0,
    ) -> None:  # fmt: skip
        names = {s.kind: [x.name for x in programs.train.sources if x.kind == s.kind] for s in programs.train.sources}
        more = [x.name for x in programs.eval.sources if x.kind in ("parameter", "buffer")]
        parameters = {n: state[n] for n in dict.fromkeys([*names.get("parameter", []), *more]) if n in state}
        buffers = buffer_names(programs)
        held = StageState(
            {n: t for n, t in parameters.items() if n not in buffers}, {n: state[n] for n in state if n in buffers}
        )
        blocks = (0, programs.train.block_count)
        stage = StageRunner(programs, blocks, held, optimizer, seed, device, staleness=staleness)
        super().__init__(stage, programs, clip_norm, PlanLayout(programs, lanes) if lanes is not None else None)


AnyReference = Reference[StageRunner] | Reference[StageChain]


def reference_for(
    plan: Plan, programs: ProgramPair, state: dict[str, torch.Tensor], optimizer: Optimizer, *, seed: int,
    clip_norm: float | None, lanes: bool = True,
) -> AnyReference:  # fmt: skip
    """What a run of this plan must reproduce: the model uncut, unless a codec rounds what crosses the cuts."""
    if not why_changed_on_the_way(plan):
        added = plan if lanes else None
        late = schedule_named(plan.schedule).staleness
        return UncutRun(programs, state, optimizer, seed=seed, clip_norm=clip_norm, lanes=added, staleness=late)
    layout = PlanLayout(programs, plan)
    return Reference(StageChain(layout, state, optimizer, seed), programs, clip_norm, layout)

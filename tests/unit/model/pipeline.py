"""A pipeline in one process: stages pass tensors as messages, rows may be shared, and the oracle runs uncut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from potluck.compute.runner import Rows, StageRunner, StageState
from potluck.job.optimizers import SGD, Optimizer
from potluck.program.layout import PlanLayout
from potluck.program.program import Program, ProgramPair, shape_of
from potluck.tensors.parcels import pack, unpack
from potluck.types import Member, Plan, Stage
from potluck.uncut.uncut_run import UncutRun

CPU = torch.device("cpu")
MOMENTUM = SGD(lr=0.1, momentum=0.9)

MicroBatch = tuple[dict[str, torch.Tensor], torch.Tensor]  # feeds, loss weights
Maybe = torch.Tensor | None


def through_a_link(tensor: Maybe) -> Maybe:
    """The tensor as it arrives at the other end."""
    return unpack([memoryview(bytes(part)) for part in pack([tensor])], CPU)[0]


def even_cuts(blocks: int, stages: int) -> list[tuple[int, int]]:
    """Stages of about equally many blocks."""
    return list(pairwise([blocks * i // stages for i in range(stages + 1)]))


class Pipeline:
    """Stages [start, stop) of blocks; `shares` names how many parts take the rows of a stage's micro-batches."""

    def __init__(
        self, programs: ProgramPair, state: Mapping[str, torch.Tensor], cuts: Sequence[tuple[int, int]],
        optimizer: Optimizer = MOMENTUM, seed: int = 3, shares: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.programs = programs
        stages = tuple(Stage(blocks=c, group=(Member(device=f"d{i}", share=1),)) for i, c in enumerate(cuts))
        self.layout = PlanLayout(programs, Plan(micro_batch_size=64, micro_batches=64, stages=stages))
        self.groups: list[list[StageRunner]] = []
        for i, blocks in enumerate(cuts):
            parameters, buffers = self.layout.state_names(i)
            held = StageState({n: state[n] for n in parameters}, {n: state[n] for n in buffers})
            count = (shares or {}).get(i, 1)
            self.groups.append([StageRunner(programs, blocks, held, optimizer, seed, CPU) for _ in range(count)])
        self.losses: list[float] = []

    def round(self, number: int, micro_batches: Sequence[MicroBatch], commit: bool = True) -> None:
        """One round; the losses of its micro-batches (of each part of the last stage) are kept in `losses`."""
        total = float(sum(w.double().sum() for _, w in micro_batches))
        self.losses = []
        for j, (feeds, weights) in enumerate(micro_batches):
            self._forward(number, j, feeds, weights.double() / total)
            self._backward(number, j, len(weights))
        self._add_up_gradients(number)
        for runner in self._runners():
            if commit:
                runner.commit(number, 1.0, 1.0)
            else:
                runner.abort(number)

    def evaluate(self, feeds: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The evaluation program's outputs."""
        rows = len(next(iter(feeds.values())))
        inputs = _inputs(self.programs.eval)
        made: dict[int, torch.Tensor] = {}
        for stage, *_ in self.groups:
            piece = stage.eval_piece
            received = {v: _present(through_a_link(made[v])) for v in piece.receives}
            made.update(stage.evaluate(rows, {v: feeds[inputs[v]] for v in piece.feeds}, received))
        return [made[o] for o in self.programs.eval.outputs]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything the stages hold; a tied weight as its owner has it."""
        found: dict[str, torch.Tensor] = {}
        for runner in self._runners():
            state = runner.state()
            for name, tensor in {**state.parameters, **state.buffers, **state.optimizer}.items():
                found.setdefault(name, tensor)
        return found

    def _runners(self) -> list[StageRunner]:
        return [runner for group in self.groups for runner in group]

    def _forward(self, number: int, j: int, feeds: Mapping[str, torch.Tensor], scales: torch.Tensor) -> None:
        inputs = _inputs(self.programs.train)
        whole: dict[int, torch.Tensor] = {}
        for group in self.groups:
            piece = group[0].piece
            made: list[dict[int, torch.Tensor]] = []
            for runner, (start, stop) in zip(group, _spans(len(scales), len(group)), strict=True):
                mine = {v: feeds[inputs[v]][start:stop] for v in piece.feeds}
                received = {v: _present(through_a_link(self._rows(v, whole[v], start, stop))) for v in piece.receives}
                made.append(
                    runner.forward(Rows(number, j, start, stop), mine, received, float(scales[start:stop].sum()))
                )
                loss = runner.loss(number, j)
                if loss is not None:
                    self.losses.append(loss)
            whole.update({v: self._joined(v, [m[v] for m in made]) for v in piece.sends})

    def _backward(self, number: int, j: int, rows: int) -> None:
        arrived: list[dict[int, torch.Tensor]] = [{} for _ in self.groups]
        for i in reversed(range(len(self.groups))):
            backs = []
            for runner, (start, stop) in zip(self.groups[i], _spans(rows, len(self.groups[i])), strict=True):
                wanted = {v: through_a_link(self._rows(v, g, start, stop)) for v, g in arrived[i].items()}
                backs.append(runner.backward(number, j, wanted))
            for (earlier, later), values in self.layout.gradients.items():
                for value in values if later == i else ():
                    parts = [b[value] for b in backs]
                    if any(p is not None for p in parts):
                        joined = self._joined(value, self._filled(value, parts, rows))
                        arrived[earlier][value] = _present(through_a_link(joined))

    def _rows(self, value: int, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        known = self.programs.train.values[value]
        assert known.batch_axis is not None, f"value {value} crosses a cut without a batch axis"
        k = known.batch_factor
        return tensor.narrow(known.batch_axis, start * k, (stop - start) * k)

    def _joined(self, value: int, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        axis = self.programs.train.values[value].batch_axis
        return parts[0] if len(parts) == 1 or axis is None else torch.cat(list(parts), dim=axis)

    def _filled(self, value: int, parts: Sequence[Maybe], rows: int) -> list[torch.Tensor]:
        """Zeros for a part from which no gradient came: none of its rows counted."""
        present = next(p for p in parts if p is not None)
        whole = present.new_zeros(shape_of(self.programs.train.values[value], rows))
        spans = _spans(rows, len(parts))
        return [self._rows(value, whole, *s) if p is None else p for p, s in zip(parts, spans, strict=True)]

    def _add_up_gradients(self, number: int) -> None:
        for name, users in self.layout.users.items():
            holders = [r for s in users for r in self.groups[s] if name in r.trainable]
            present = [g for r in holders if (g := r.parameters[name].grad) is not None]
            if len(holders) > 1 and present:
                total = present[0]
                for gradient in present[1:]:
                    total = total + gradient
                for runner in holders:
                    runner.set_gradients(number, {name: total.clone()})


def _present(tensor: Maybe) -> torch.Tensor:
    assert tensor is not None
    return tensor


def _inputs(program: Program) -> dict[int, str]:
    return {s.id: s.name for s in program.sources if s.kind == "input"}


def _spans(rows: int, parts: int) -> list[tuple[int, int]]:
    return list(pairwise([rows * i // parts for i in range(parts + 1)]))


def uncut(
    programs: ProgramPair, state: Mapping[str, torch.Tensor], optimizer: Optimizer = MOMENTUM, seed: int = 3
) -> UncutRun:
    """The oracle."""
    return UncutRun(programs, dict(state), optimizer, seed=seed, clip_norm=None)


def uncut_tensors(run: UncutRun) -> dict[str, torch.Tensor]:
    """Everything the uncut run holds."""
    state = run.stage.state()
    return {**state.parameters, **state.buffers, **state.optimizer}


def differing(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of tensors that differ in any bit. A parameter nobody uses is held by nobody, so it may be missing."""
    assert set(found) <= set(expected), sorted(set(found) - set(expected))
    return [n for n in found if not torch.equal(found[n], expected[n])]


def distance(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]
) -> float:
    """The largest difference of a tensor, measured by how far the whole model has moved."""
    moved = math.sqrt(sum(float((expected[n].double() - before[n].double()).square().sum()) for n in before))
    assert moved > 0
    return max(float((found[n].double() - expected[n].double()).norm()) / moved for n in before if n in found)

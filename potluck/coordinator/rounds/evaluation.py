"""Evaluation on the devices: they run the evaluation program, the user's metrics run here."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from potluck.coordinator.contexts import Session
from potluck.coordinator.rounds.feeder import send_feeds
from potluck.coordinator.samples.loading import Batch, evaluation_loader
from potluck.errors import InputError
from potluck.job.job import Job
from potluck.metrics.records import RECORDS, EvaluationRecord, read
from potluck.model.forms import outputs_as_given
from potluck.plan.routes import micro_batch_sizes, rows
from potluck.program.program import Program
from potluck.tensors.checkpoint import Best, best
from potluck.tensors.parcels import unpack
from potluck.wire.link import Tag
from potluck.wire.messages import Evaluate

_CPU = torch.device("cpu")


class Judge:
    """Which evaluation was the best so far, and whether to go on."""

    def __init__(self, job: Job, before: Best | None, since: int) -> None:
        self._metric, self._higher = job.best_metric
        self._patience = job.patience
        self._best = before.value if before is not None and before.metric == self._metric else None
        self._since = since if self._best is not None else 0

    def see(self, round: int, loss: float, metrics: dict[str, float]) -> Best | None:
        """The new best, or None."""
        value = loss if self._metric == "loss" else metrics.get(self._metric)
        if value is not None and not math.isfinite(value):
            return None
        if value is None:
            raise InputError(f"job: best {self._metric!r} is not among the metrics {', '.join(metrics) or '(none)'}")
        if self._best is None or (value > self._best if self._higher else value < self._best):
            self._best, self._since = value, 0
            return Best(round=round, metric=self._metric, value=value)
        self._since += 1
        return None

    @property
    def patience_is_over(self) -> bool:
        return self._patience is not None and self._since >= self._patience


def seen_before(run_dir: Path, first_round: int) -> tuple[Best | None, int]:
    """The best evaluation of the rounds that a resumed run keeps, and how many came after it."""
    known = best(run_dir) if first_round else None
    if known is None or known.round > first_round:
        return None, 0
    evaluations = [r for r in read(run_dir / RECORDS) if isinstance(r, EvaluationRecord)]
    return known, len({r.round for r in evaluations if known.round < r.round <= first_round})


def measure(job: Job, outputs: Any, labels: torch.Tensor) -> dict[str, float]:
    """The job's metrics; an InputError names the one that fails."""
    found = {}
    for name, metric in job.metrics.items():
        try:
            found[name] = float(metric(outputs, labels))
        except Exception as error:  # the user's function may fail in any way
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise InputError(f"job: metric {name!r} fails on {len(labels)} samples: {what}; correct it") from error
    return found


def summed_up(
    job: Job, program: Program, outputs: list[list[torch.Tensor]], labels: list[torch.Tensor],
    losses: list[tuple[float, float]],
) -> tuple[float, dict[str, float], int]:  # fmt: skip
    """Loss and metrics over all batches, given each one's loss and weight, and how many samples they have."""
    axes = [sample_axis(program, index) for index in range(len(program.outputs))]
    joined = [torch.cat(parts, axis) for axis, parts in zip(axes, zip(*outputs, strict=True), strict=True)]
    label = torch.cat(labels)
    weight = sum(w for _, w in losses)
    loss = sum(value * w for value, w in losses) / weight if weight else float("nan")
    return loss, measure(job, outputs_as_given(program, joined), label), len(label)


class Evaluator:
    """Runs the whole evaluation set through the pipeline, two batches under way at a time."""

    def __init__(self, session: Session, receive: Callable[[str, Tag], list[memoryview]]) -> None:
        self.s = session
        self._program = session.layout.programs.eval
        for index in range(len(self._program.outputs)):
            sample_axis(self._program, index)  # better now than after the first round
        self._loader = evaluation_loader(session.job)
        self._number = 0
        self._receive = receive

    def close(self) -> None:
        self._loader.close()

    def run(self) -> tuple[float, dict[str, float], int]:
        """Loss and metrics over the whole set, and how many samples it has."""
        outputs: list[list[torch.Tensor]] = []
        labels: list[torch.Tensor] = []
        losses: list[tuple[float, float]] = []
        under_way: list[tuple[int, Batch, tuple[int, ...]]] = []
        for index in range(self._loader.order.rounds):
            under_way.append(self._start(index))
            if len(under_way) > 1:
                self._finish(*under_way.pop(0), outputs, labels, losses)
        while under_way:
            self._finish(*under_way.pop(0), outputs, labels, losses)
        return summed_up(self.s.job, self._program, outputs, labels, losses)

    def _start(self, index: int) -> tuple[int, Batch, tuple[int, ...]]:
        batch = self._loader.get(index)
        sizes = micro_batch_sizes(len(batch.ids), self.s.plan.micro_batch_size)
        number, self._number = self._number, self._number + 1
        self.s.roster.broadcast(Evaluate(number=number, sizes=sizes), self.s.plan.devices)
        send_feeds(self.s.link, self.s.layout, "eval", number, batch, sizes, self.s.timeout_s)
        return number, batch, sizes

    def _finish(
        self, number: int, batch: Batch, sizes: tuple[int, ...], outputs: list[list[torch.Tensor]],
        labels: list[torch.Tensor], losses: list[tuple[float, float]],
    ) -> None:  # fmt: skip
        last = self.s.plan.stages[-1]
        start = 0
        for micro_batch, size in enumerate(sizes):
            for part in rows(last, micro_batch, size, self.s.plan):
                tag = Tag("outputs", number, micro_batch, 0, part.start)
                message = self._receive(part.device, tag)
                tensors = [t for t in unpack(message, _CPU) if t is not None]
                span = slice(start + part.start, start + part.stop)
                label = batch.feeds["label"][span]
                outputs.append(tensors)
                labels.append(label)
                weight = float(batch.weights[span].sum())
                if weight and self.s.job.reduce is None:
                    value = outputs_as_given(self._program, tensors)
                    losses.append((float(self.s.job.loss(value, label)), weight))
            start += size


def sample_axis(program: Program, index: int) -> int:
    """The axis along which an output holds its samples."""
    axis = program.values[program.outputs[index]].batch_axis
    if axis is None:
        name = program.output_names[index] if program.output_names else ""
        raise InputError(
            f"the model's output {name}{' ' if name else ''}holds no samples along any axis; evaluation needs a row of "
            "each output per sample: return only such in evaluation, or give Job.reduce"
        )
    return axis

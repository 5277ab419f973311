"""Evaluation on the devices: they run the evaluation program, the user's metrics run here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from potluck.coordinator.contexts import Session
from potluck.coordinator.rounds.feeder import send_feeds
from potluck.coordinator.samples.job_metrics import sample_axis, summed_up
from potluck.coordinator.samples.loading import Batch, evaluation_loader
from potluck.model.forms import outputs_as_given
from potluck.plan.routes import micro_batch_sizes, rows
from potluck.tensors.parcels import unpack
from potluck.wire.link import Tag
from potluck.wire.messages import Evaluate

_CPU = torch.device("cpu")


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

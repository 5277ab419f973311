"""Evaluation on the devices: they run the evaluation program, the user's metrics run here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from potluck.coordinator.contexts import TermContext
from potluck.coordinator.rounds.feeder import send_feeds
from potluck.coordinator.samples.job_metrics import Gathered
from potluck.coordinator.samples.loading import Batch, evaluation_loader
from potluck.plan.routes import micro_batch_sizes, rows
from potluck.tensors.parcels import unpack
from potluck.wire.link import Tag
from potluck.wire.messages import Evaluate

_CPU = torch.device("cpu")


class Evaluator:
    """Runs the whole evaluation set through the pipeline, two batches under way at a time."""

    def __init__(self, term: TermContext, receive: Callable[[str, Tag], list[memoryview]]) -> None:
        self._term, self._run = term, term.run
        self._program = term.layout.programs.eval
        self._gathered()  # what cannot be gathered is refused now, not after the first round
        self._loader = evaluation_loader(term.run.job)
        self._number = 0
        self._receive = receive

    def close(self) -> None:
        self._loader.close()

    def run(self) -> tuple[float, dict[str, float], int]:
        """Loss and metrics over the whole set, and how many samples it has."""
        gathered = self._gathered()
        under_way: list[tuple[int, Batch, tuple[int, ...]]] = []
        for index in range(self._loader.order.rounds):
            under_way.append(self._start(index))
            if len(under_way) > 1:
                self._finish(*under_way.pop(0), gathered)
        while under_way:
            self._finish(*under_way.pop(0), gathered)
        return gathered.summed_up()

    def _gathered(self) -> Gathered:
        return Gathered(self._run.job, self._program, self._run.outputs)

    def _start(self, index: int) -> tuple[int, Batch, tuple[int, ...]]:
        batch = self._loader.get(index)
        sizes = micro_batch_sizes(len(batch.ids), self._term.plan.micro_batch_size)
        number, self._number = self._number, self._number + 1
        self._run.roster.broadcast(Evaluate(number=number, sizes=sizes), self._term.plan.devices)
        send_feeds(self._run.link, self._term.layout, "eval", number, batch, sizes, self._run.timeout_s)
        return number, batch, sizes

    def _finish(self, number: int, batch: Batch, sizes: tuple[int, ...], gathered: Gathered) -> None:
        last = self._term.plan.stages[-1]
        start = 0
        for micro_batch, size in enumerate(sizes):
            for part in rows(last, micro_batch, size, self._term.plan):
                tag = Tag("outputs", number, micro_batch, 0, part.start)
                message = self._receive(part.device, tag)
                tensors = [t for t in unpack(message, _CPU) if t is not None]
                span = slice(start + part.start, start + part.stop)
                gathered.add(tensors, batch.feeds["label"][span], float(batch.weights[span].sum()))
            start += size

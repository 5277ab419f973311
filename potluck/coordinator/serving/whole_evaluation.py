"""The whole model judged in this process, by weights as they come: what a parameter server's coordinator does."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from potluck.coordinator.samples.job_metrics import Gathered
from potluck.coordinator.samples.loading import evaluation_loader
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.uncut.uncut_run import UncutRun


class WholeEvaluation:
    """Loss and metrics over the job's evaluation data."""

    def __init__(self, prepared: PreparedJob) -> None:
        self._job, self._outputs, programs = prepared.job, prepared.built.outputs, prepared.built.programs
        state = {name: tensor.clone() for name, tensor in prepared.built.state.items()}
        self._run = UncutRun(programs, state, prepared.optimizer, seed=self._job.seed, clip_norm=None)
        self._program = programs.eval
        self._inputs = {s.name: s.id for s in self._program.sources if s.kind == "input"}
        self._loader = evaluation_loader(self._job)

    def run(self, weights: Mapping[str, torch.Tensor]) -> tuple[float, dict[str, float], int]:
        """Loss and metrics with these weights, and how many samples there are."""
        self._load(weights)
        gathered = Gathered(self._job, self._program, self._outputs)
        for index in range(self._loader.order.rounds):
            batch = self._loader.get(index)
            feeds = {i: batch.feeds[name] for name, i in self._inputs.items()}
            values = self._run.stage.evaluate(len(batch.ids), feeds, {})
            gathered.add([values[v] for v in self._program.outputs], batch.feeds["label"], float(batch.weights.sum()))
        return gathered.summed_up()

    def close(self) -> None:
        self._loader.close()

    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        stage = self._run.stage
        with torch.no_grad():
            for own in (stage.parameters, stage.buffers):
                for name, tensor in own.items():
                    if name in weights:
                        tensor.detach().copy_(weights[name])

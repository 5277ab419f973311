"""The stages of a plan in one process, with what crosses a cut passed through the codec of the cut.

With codecs that round, this is what a cut run must reproduce: who is rounded, when and how often, follows the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from potluck.compute.runner import Rows, StageRunner, StageState
from potluck.job.optimizers import Optimizer
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.program.layout import PlanLayout
from potluck.tensors.coded import Like, pack_coded, unpack_coded

_CPU = torch.device("cpu")
_Maybe = torch.Tensor | None


class StageChain:
    """What a StageRunner is for a whole program, in the pieces of a plan."""

    def __init__(
        self, layout: PlanLayout, state: Mapping[str, torch.Tensor], optimizer: Optimizer, seed: int,
    ) -> None:  # fmt: skip
        self._layout = layout
        self._runners: list[StageRunner] = []
        for index, stage in enumerate(layout.plan.stages):
            parameters, buffers = layout.state_names(index)
            held = StageState({n: state[n] for n in parameters}, {n: state[n] for n in buffers})
            late = schedule_named(layout.plan.schedule).staleness
            runner = StageRunner(layout.programs, stage.blocks, held, optimizer, seed, _CPU, staleness=late)
            self._runners.append(runner)
        self.trainable = list(dict.fromkeys(n for runner in self._runners for n in runner.trainable))

    def forward(
        self, rows: Rows, feeds: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor], scale: float
    ) -> dict[int, torch.Tensor]:
        """Runs every stage; nothing is received from outside, and nothing leaves."""
        edges, made = self._layout.edges["train"], dict(received)
        for index, runner in enumerate(self._runners):
            given: dict[int, torch.Tensor] = {}
            for source in self._layout.sources("train", index):
                arrived = self._crossed(source, edges[source, index], made)
                given |= {value: tensor for value, tensor in arrived.items() if tensor is not None}
            made |= runner.forward(rows, {f: feeds[f] for f in runner.piece.feeds}, given, scale)
        return {}

    def backward(self, round: int, micro_batch: int, gradients: Mapping[int, _Maybe]) -> dict[int, _Maybe]:
        """Runs every stage backward, the last one first."""
        arrived: list[dict[int, _Maybe]] = [dict(gradients) for _ in self._runners]
        for index in reversed(range(len(self._runners))):
            backs = self._runners[index].backward(round, micro_batch, arrived[index])
            for (earlier, later), values in self._layout.gradients.items():
                if later == index:
                    arrived[earlier] |= self._crossed(earlier, values, backs)
        return {}

    def _crossed(self, earlier: int, values: Sequence[int], tensors: Mapping[int, _Maybe]) -> dict[int, _Maybe]:
        """Values as they arrive behind the cut after a stage, or gradients as they come back to it."""
        there = [tensors.get(value) for value in values]
        codec = self._layout.codecs[earlier]
        message = [memoryview(part) for part in pack_coded(there, codec)]
        likes = [Like((), torch.bool) if t is None else Like(tuple(t.shape), t.dtype) for t in there]
        return dict(zip(values, unpack_coded(message, codec, likes, _CPU), strict=True))

    def loss(self, round: int, micro_batch: int) -> float | None:
        """The loss of a micro-batch not yet run backward."""
        return self._runners[-1].loss(round, micro_batch)

    def gradients(self, round: int) -> dict[str, _Maybe]:
        """What the micro-batches have added up to; of a weight that stages share, the sum."""
        found: dict[str, _Maybe] = dict.fromkeys(self.trainable)
        for runner in self._runners:
            for name, gradient in runner.gradients(round).items():
                before = found[name]
                if gradient is not None:
                    found[name] = gradient if before is None else before + gradient
        return found

    def set_gradients(self, round: int, summed: Mapping[str, _Maybe]) -> None:
        """Replaces gradients, wherever the parameter is held."""
        for runner in self._runners:
            runner.set_gradients(round, {n: g for n, g in summed.items() if n in runner.parameters})

    def squared_norms(self, round: int, names: Iterable[str]) -> dict[str, float]:
        wanted, norms = list(names), dict[str, float]()
        for runner in self._runners:
            norms |= runner.squared_norms(round, [n for n in wanted if n in runner.parameters])
        return norms

    def commit(self, round: int, lr_scale: float, clip: float) -> None:
        """One optimizer step of every stage."""
        for runner in self._runners:
            runner.commit(round, lr_scale, clip)

    def abort(self, round: int) -> None:
        for runner in self._runners:
            runner.abort(round)

    def state(self) -> StageState:
        """The tensors of all stages as they are now."""
        whole = StageState({}, {})
        for state in (runner.state() for runner in self._runners):
            whole.parameters |= state.parameters
            whole.buffers |= state.buffers
            whole.optimizer |= state.optimizer
        return whole

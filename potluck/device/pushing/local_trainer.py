"""A worker that trains the whole model on its own data, and can take newer weights in without losing what it did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from potluck.datasets.sample_order import epoch_order
from potluck.errors import DeviceError
from potluck.job.optimizers import Optimizer
from potluck.program.program import ProgramPair
from potluck.tensors.flat_vector import Flat
from potluck.uncut.uncut_run import UncutRun

_CPU = torch.device("cpu")
_MOST_BAD = 10  # steps in a row that are not finite: one bad batch is left out, weights that are gone are not


class LocalTrainer:
    """One step after the other over its samples, each epoch in an order of its own."""

    def __init__(
        self, programs: ProgramPair, state: dict[str, torch.Tensor], optimizer: Optimizer,
        data: Mapping[str, torch.Tensor], *, batch_size: int, seed: int, clip_norm: float | None = None,
        device: torch.device = _CPU,
    ) -> None:  # fmt: skip
        """`data` are the feeds, the sample along the first axis; `seed` is this worker's own."""
        self._run = UncutRun(programs, state, optimizer, seed=seed, clip_norm=clip_norm, device=device)
        self._device = device
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None  # of an epoch
        self._bad = 0  # steps in a row that were not finite
        self._data, self._seed = data, seed
        self.samples = min(len(tensor) for tensor in data.values())
        self._batch = min(batch_size, self.samples)
        self._steps = 0
        self.flat = Flat.of(self.tensors(), self._run.stage.buffers)

    def feeds(self, step: int) -> dict[str, torch.Tensor]:
        """What it trains on in a step. What is left over at the end of an epoch comes in another one."""
        epoch, place = divmod(step, self.samples // self._batch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self._seed, epoch, self.samples)
        rows = torch.from_numpy(self._order[1][place * self._batch : (place + 1) * self._batch])
        return {name: tensor.index_select(0, rows).to(self._device) for name, tensor in self._data.items()}

    def step(self, lr_scale: float = 1.0) -> tuple[int, float]:
        """Trains on the next samples; returns how many, and their loss. A step that is not finite is left out."""
        while True:
            feeds = self.feeds(self._steps)
            judgement = self._run.round(self._steps, [(feeds, torch.ones(self._batch))], lr_scale)
            self._steps += 1
            if judgement.kind == "commit":
                self._bad = 0
                return self._batch, judgement.loss
            self._bad += 1
            if self._bad >= _MOST_BAD:
                raise DeviceError(
                    f"step {self._steps}: loss or gradients are not finite, for the {_MOST_BAD}th time in a row; "
                    "look at the data, lower the rate"
                )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights and buffers by name, as they are."""
        stage = self._run.stage
        return {**{name: p.detach() for name, p in stage.parameters.items()}, **stage.buffers}

    def vector(self) -> torch.Tensor:
        """The weights as they are."""
        return self.flat.vector(self.tensors())

    def load(self, vector: torch.Tensor) -> None:
        """Goes on from these weights; what the optimizer remembers stays."""
        own = self.tensors()
        with torch.no_grad():
            for name, tensor in self.flat.tensors(vector).items():
                own[name].copy_(tensor)

    def catch_up(self, newest: torch.Tensor, at_push: torch.Tensor) -> torch.Tensor:
        """Takes the newest weights in, with what was trained since the push; returns the weights it goes on from."""
        self.load(self.flat.caught_up(newest, self.vector(), at_push))
        return newest

    def begin_anew(self, newest: torch.Tensor) -> torch.Tensor:
        """Takes the newest weights in and drops all that was trained, also what the optimizer remembers of it."""
        self.load(newest)
        self._run.stage.optimizer.load({})
        self._bad = 0
        return newest

"""The loss over samples that a device keeps to judge by, with whatever weights it is given."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from potluck.model.interpret import Code, Context, Registers
from potluck.model.probe import constant_tensor
from potluck.model.program import Program
from potluck.model.randomness import Draw


class Judge:
    """A program that gives the loss in evaluation, and the samples for it."""

    def __init__(
        self, program: Program, data: Mapping[str, torch.Tensor], batch_size: int, device: torch.device
    ) -> None:
        self._program, self._data, self._batch, self._device = program, data, batch_size, device
        self._code = Code(program, range(len(program.nodes)), program.outputs, device)
        self.samples = min(len(tensor) for tensor in data.values())

    def loss(self, weights: Mapping[str, torch.Tensor]) -> float:
        """The mean over all samples."""
        total = 0.0
        with torch.no_grad():
            for begin in range(0, self.samples, self._batch):
                rows = min(self._batch, self.samples - begin)
                total += rows * float(self._of(weights, begin, rows))
        return total / self.samples

    def _of(self, weights: Mapping[str, torch.Tensor], begin: int, rows: int) -> torch.Tensor:
        program = self._program
        registers: Registers = [None] * self._code.size
        for source in program.sources:
            if source.kind == "input":
                value = self._data[source.name][begin : begin + rows]
            elif source.data is not None:
                value = constant_tensor(program, source.id, source.data)
            else:
                value = weights[source.name]
            registers[source.id] = value.to(self._device)
        self._code.run(registers, Context(rows, Draw(0, 0, 0, 0), self._device))
        loss: torch.Tensor = registers[program.outputs[0]]
        return loss

"""The loss over samples that a device keeps to judge by, worked out a batch at a time between steps of training."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from potluck.compute.constants import constant_tensor
from potluck.compute.execution.execution import empty_registers
from potluck.compute.execution.executions import execution_named
from potluck.compute.our_operators import Context
from potluck.compute.randomness import Draw
from potluck.paramserver.messages import HeldOut
from potluck.program.program import Program


class HeldOutLoss:
    """A program that gives the loss in evaluation, the samples for it, and the weights that are being judged."""

    def __init__(
        self, program: Program, data: Mapping[str, torch.Tensor], batch_size: int, device: torch.device
    ) -> None:
        self._data, self._batch, self._device = data, batch_size, device
        make = execution_named(program.kernels)
        self._execution = make(program, range(len(program.nodes)), program.outputs, device)
        self._empty, self._output = empty_registers(program), program.outputs[0]
        self._inputs = {s.id: s.name for s in program.sources if s.kind == "input"}
        known = {s.id: (s.name, s.data) for s in program.sources if s.kind != "input"}
        self._constants = {i: constant_tensor(program, i, d).to(device) for i, (_, d) in known.items() if d is not None}
        self._names = {i: name for i, (name, data) in known.items() if data is None}
        self._weights: dict[int, torch.Tensor] = {}
        self._version, self._done, self._total = 0, 0, 0.0
        self.samples = min(len(tensor) for tensor in data.values())

    @property
    def under_way(self) -> bool:
        """Whether some weights are being judged."""
        return bool(self._weights)

    def begin(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Judges these weights next; they must stay as they are."""
        self._weights = {i: weights[name].detach().to(self._device) for i, name in self._names.items()}
        self._version, self._done, self._total = version, 0, 0.0

    def step(self) -> HeldOut | None:
        """One batch more; the verdict after the last one."""
        rows = min(self._batch, self.samples - self._done)
        self._total += rows * self._loss(self._done, rows)
        self._done += rows
        if self._done < self.samples:
            return None
        self._weights = {}
        loss = self._total / self.samples
        return HeldOut(version=self._version, loss=loss if math.isfinite(loss) else None, samples=self.samples)

    def _loss(self, begin: int, rows: int) -> float:
        registers = self._empty.copy()
        given = {i: self._data[name][begin : begin + rows].to(self._device) for i, name in self._inputs.items()}
        for value, tensor in {**self._constants, **self._weights, **given}.items():
            registers[value] = tensor
        with torch.no_grad():
            self._execution.forward(registers, Context(rows, Draw(0, 0, 0, 0), self._device))
        return float(registers[self._output])

"""What a way to execute a piece of a program must be able to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from potluck.compute.late_weights import Owed
from potluck.compute.our_operators import Context
from potluck.compute.stage_optimizer import StageOptimizer
from potluck.program.program import Program

Registers = list[Any]  # the values of a program by their numbers; None: not there


def empty_registers(program: Program) -> Registers:
    """Room for every value of a program."""
    return [None] * (max(program.values, default=-1) + 1)


class Execution(Protocol):
    """A piece of a program, ready to run on one device. It keeps nothing of what it ran: the runner does."""

    @property
    def can_wait(self) -> bool:
        """Whether there are weight gradients that can be put off."""

    def forward(self, registers: Registers, context: Context) -> None:
        """Fills the registers of what is to be kept. Those of sources and of what was received are full.

        It leaves what autograd needs to come back. Where the context has a list for it, weight gradients may be owed.
        """

    def backward(self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Adds to the gradients of all that the roots came from, given those of the roots."""

    def weights(self, owed: Iterable[Owed]) -> None:
        """Adds the weight gradients that a backward pass has left owed."""

    def step(self, optimizer: StageOptimizer, lr_scale: float) -> None:
        """Changes the parameters by their gradients."""

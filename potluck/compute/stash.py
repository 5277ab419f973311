"""What one micro-batch leaves behind between its forward and its backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from potluck.compute.late_weights import Owed


@dataclass
class Stash:
    """What a backward needs of its forward."""

    arriving: dict[int, torch.Tensor | None]  # gradients of what was received, once the backward has run
    tapped: dict[int, torch.Tensor]  # what was received, where its gradient adds up
    sent: dict[int, torch.Tensor]  # what a gradient comes back for
    loss: torch.Tensor | None
    scale: float
    owed: list[Owed]  # weight gradients that the backward has put off


class Tap(torch.autograd.Function):
    """Identity on a received value that keeps its gradient as it comes.

    A leaf's `.grad` would be copied into the leaf's memory order, and another order means other sums downstream.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: dict[int, torch.Tensor | None], value: int) -> torch.Tensor:
        ctx.keep, ctx.value = keep, value
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None, None]:
        ctx.keep[ctx.value] = gradients[0]
        return None, None, None

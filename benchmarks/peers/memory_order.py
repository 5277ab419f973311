"""Images in one order of memory inside a stage of a pipeline, and in PyTorch's own on its lines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IMAGES = 4  # axes


def arranged(values: Tensor, order: torch.memory_format) -> Tensor:
    """Images in this order; anything else as it is."""
    return values.contiguous(memory_format=order) if values.dim() == IMAGES else values


class _Rearrange(torch.autograd.Function):
    """One order forwards and another for the gradient: by itself, autograd may hand either one on."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, forwards: torch.memory_format, backwards: torch.memory_format) -> Tensor:
        """Return the values in the order for going forwards."""
        ctx.backwards = backwards
        return arranged(values, forwards)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient in the other."""
        return arranged(gradient, ctx.backwards), None, None


class ChannelsLast(nn.Module):
    """Layers that have the channels of a point side by side; what goes in and out has them as PyTorch has."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layers do."""
        usual, last = torch.contiguous_format, torch.channels_last
        inside: Tensor = _Rearrange.apply(values, last, usual)  # type: ignore[no-untyped-call]
        out: Tensor = _Rearrange.apply(self.layers(inside), usual, last)  # type: ignore[no-untyped-call]
        return out

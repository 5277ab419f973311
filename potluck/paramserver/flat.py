"""A model's floating-point tensors as one vector, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from potluck.errors import InputError


@dataclass(frozen=True)
class Flat:
    """Which tensor lies where."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Flat:
        """The floating-point ones, by name, however they come; counters and the like stay where they are."""
        floating = {name: t for name, t in sorted(tensors.items()) if t.is_floating_point()}
        kinds = {t.dtype for t in floating.values()}
        if len(kinds) != 1:
            kept = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds)) or "none"
            raise InputError(
                f"a parameter server needs weights of one floating-point type, not of {kept}; convert them"
            )
        return cls(tuple((name, tuple(t.shape)) for name, t in floating.items()), kinds.pop())

    @property
    def size(self) -> int:
        """Elements in all."""
        return sum(torch.Size(shape).numel() for _, shape in self.shapes)

    def vector(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The tensors end to end, in memory of their own."""
        return torch.cat([tensors[name].detach().reshape(-1).to("cpu") for name, _ in self.shapes])

    def tensors(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Each tensor as a view of the vector."""
        found, at = {}, 0
        for name, shape in self.shapes:
            count = torch.Size(shape).numel()
            found[name] = vector[at : at + count].view(shape)
            at += count
        return found

"""A model's floating-point tensors as one vector, and back: first what is learnt, then what is measured on the way.

Of what is learnt, workers push differences, which add up. Running statistics (buffers) are measured: they are pushed as
they are and the server's move towards them. Differences of them would add up to what nobody measured, like a variance
below zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from potluck.errors import InputError

_Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Flat:
    """Which tensor lies where."""

    shapes: _Shapes
    dtype: torch.dtype
    measured: _Shapes = ()  # after all others

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], buffers: Collection[str] = ()) -> Flat:
        """The floating-point ones, by name, however they come; counters and the like stay where they are."""
        floating = {name: t for name, t in sorted(tensors.items()) if t.is_floating_point()}
        kinds = {t.dtype for t in floating.values()}
        if len(kinds) != 1:
            kept = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds)) or "none"
            raise InputError(
                f"a parameter server needs weights of one floating-point type, not of {kept}; convert them"
            )
        shapes = {name: tuple(t.shape) for name, t in floating.items()}
        learnt = tuple((name, shape) for name, shape in shapes.items() if name not in buffers)
        return cls(learnt, kinds.pop(), tuple((name, shape) for name, shape in shapes.items() if name in buffers))

    @property
    def learnt(self) -> int:
        """Elements of what is learnt."""
        return _elements(self.shapes)

    @property
    def size(self) -> int:
        """Elements in all."""
        return self.learnt + _elements(self.measured)

    def vector(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The tensors end to end, in memory of their own."""
        every = (*self.shapes, *self.measured)
        return torch.cat([tensors[name].detach().reshape(-1).to("cpu") for name, _ in every])

    def tensors(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Each tensor as a view of the vector."""
        found, at = {}, 0
        for name, shape in (*self.shapes, *self.measured):
            count = torch.Size(shape).numel()
            found[name] = vector[at : at + count].view(shape)
            at += count
        return found

    def only_learnt(self) -> Flat:
        """The same without what is measured."""
        return Flat(self.shapes, self.dtype)

    def update(self, now: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """What a worker pushes that began with `base`."""
        found = now - base
        found[self.learnt :] = now[self.learnt :]
        return found

    def caught_up(self, newest: torch.Tensor, now: torch.Tensor, at_push: torch.Tensor) -> torch.Tensor:
        """The newest weights, with what a worker has learnt since its push."""
        found = newest + (now - at_push)
        found[self.learnt :] = newest[self.learnt :]
        return found


def _elements(shapes: _Shapes) -> int:
    return sum(torch.Size(shape).numel() for _, shape in shapes)

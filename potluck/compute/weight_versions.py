"""Which version of the weights a micro-batch is computed with.

Where rounds overlap, a round may still be computed with weights that are older than the newest. The runner asks here
for the weights of every forward, of every forward that is run again for its backward, and of every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

StageWeights = Mapping[str, torch.Tensor]  # the same names always; leaves, where they are trained

PREVIOUS = "previous"  # the slot, beside those of the optimizer, in which weights from before the last step travel


class WeightVersions(Protocol):
    """The weights of a stage, as each micro-batch sees them."""

    @property
    def newest(self) -> StageWeights:
        """With the steps of all committed rounds."""

    def for_forward(self, round: int, micro_batch: int) -> StageWeights:
        """What a forward reads."""

    def for_backward(self, round: int, micro_batch: int) -> StageWeights:
        """What its backward adds gradients to, and what its forward reads if it is run again for that."""

    def for_step(self, round: int) -> StageWeights:
        """Those whose `.grad` is what the micro-batches of a round have added up to."""

    def begin_step(self, round: int) -> StageWeights:
        """Its leaves, now with the newest values, for the step to change: nobody else computes with them."""

    def publish(self, round: int) -> None:
        """The newest weights have taken the step of a round, which needs its own no more."""

    def kept(self) -> dict[str, torch.Tensor]:
        """What a state has to hold beside the newest weights, by slot."""


class OneVersion:
    """Lock-step: everything is computed with the newest weights, so there are no others."""

    def __init__(self, newest: StageWeights) -> None:
        self.newest = newest

    def for_forward(self, round: int, micro_batch: int) -> StageWeights:
        return self.newest

    def for_backward(self, round: int, micro_batch: int) -> StageWeights:
        return self.newest

    def for_step(self, round: int) -> StageWeights:
        return self.newest

    def begin_step(self, round: int) -> StageWeights:
        return self.newest

    def publish(self, round: int) -> None:
        """The next forward reads the newest anyway."""

    def kept(self) -> dict[str, torch.Tensor]:
        return {}


class OneStepLate:
    """A round is computed with the weights from before the last step: it need not wait for the round before it.

    Two sets of leaves take turns. A step writes the weights that it makes over the older set, whose round is over; the
    other is what the next round is being computed with.
    """

    def __init__(self, newest: StageWeights, previous: StageWeights, first: int) -> None:
        """`first` is the round that comes next; `previous` are values. Before a first step they are the newest."""
        self.newest, self._first = newest, first
        self._older: StageWeights = {
            name: tensor
            if not tensor.requires_grad
            else previous.get(name, tensor).detach().clone().to(tensor.device).requires_grad_(True)
            for name, tensor in newest.items()
        }

    def for_forward(self, round: int, micro_batch: int) -> StageWeights:
        return self.for_step(round)

    def for_backward(self, round: int, micro_batch: int) -> StageWeights:
        return self.for_step(round)

    def for_step(self, round: int) -> StageWeights:
        if not 0 <= round - self._first <= 1:
            raise ValueError(f"round {round} while rounds {self._first} and {self._first + 1} may be open")
        return self._older if round == self._first else self.newest

    def begin_step(self, round: int) -> StageWeights:
        older = self.for_step(round)
        if older is not self._older:
            raise ValueError(f"a step of round {round} before that of round {self._first}")
        with torch.no_grad():
            for name in _trained(older):
                older[name].copy_(self.newest[name])
        return older

    def publish(self, round: int) -> None:
        self._older, self.newest, self._first = self.newest, self._older, round + 1

    def kept(self) -> dict[str, torch.Tensor]:
        return {f"{name}/{PREVIOUS}": self._older[name].detach() for name in _trained(self._older)}


def _trained(weights: StageWeights) -> Iterable[str]:
    return (name for name, tensor in weights.items() if tensor.requires_grad)


def parted(optimizer: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What an optimizer keeps, and the weights from before the last step, by name."""
    ending = f"/{PREVIOUS}"
    previous = {key.removesuffix(ending): tensor for key, tensor in optimizer.items() if key.endswith(ending)}
    return {key: tensor for key, tensor in optimizer.items() if not key.endswith(ending)}, previous

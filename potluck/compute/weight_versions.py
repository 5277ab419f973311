"""Which version of the weights a micro-batch is computed with.

Where rounds overlap, a round may still be computed with weights that are older than the newest. The runner asks here
for the weights of every forward, of every forward that is run again for its backward, and of every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

StageWeights = Mapping[str, torch.Tensor]  # the same names always; leaves, where they are trained


class WeightVersions(Protocol):
    """The weights of a stage, as each micro-batch sees them."""

    def for_forward(self, round: int, micro_batch: int) -> StageWeights:
        """What a forward reads."""

    def for_backward(self, round: int, micro_batch: int) -> StageWeights:
        """What its backward adds gradients to, and what its forward reads if it is run again for that."""

    def for_step(self, round: int) -> StageWeights:
        """Those whose `.grad` is what the micro-batches of a round have added up to."""

    def publish(self, round: int) -> None:
        """The newest weights have taken the step of a round, which needs its own no more."""


class OneVersion:
    """Lock-step: everything is computed with the newest weights, so there are no others."""

    def __init__(self, newest: StageWeights) -> None:
        self._newest = newest

    def for_forward(self, round: int, micro_batch: int) -> StageWeights:
        return self._newest

    def for_backward(self, round: int, micro_batch: int) -> StageWeights:
        return self._newest

    def for_step(self, round: int) -> StageWeights:
        return self._newest

    def publish(self, round: int) -> None:
        """The next forward reads the newest anyway."""

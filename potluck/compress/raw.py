"""The codec that changes nothing: what tensors weigh in memory is what they weigh on the wire."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.types import ITEM_BYTES, DeviceProfile

if TYPE_CHECKING:
    import torch

_WIDEST = 8  # bytes of an element of a type that nobody knows: no usual one has more, so memory is not underrated


class Raw:
    """Tensors as they are."""

    name = "raw"
    exact = True

    def bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        return math.prod(shape) * ITEM_BYTES.get(dtype, _WIDEST)

    def seconds(self, device: DeviceProfile) -> float:
        """Nothing: packing is counted with every message."""
        return 0.0

    def encode(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        return [tensor]

    def decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return parts[0]

"""A codec: floating-point numbers cross a cut with 16 bits. Name this file in POTLUCK_EXTENSIONS, on every machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from potluck.compress.codec_registry import register
from potluck.types import DeviceProfile


class Half:
    """Rounds to float16, and what is beyond its range to infinity."""

    name = "half"
    exact = False

    def bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Two for each number."""
        return 2 * math.prod(shape)

    def seconds(self, device: DeviceProfile) -> float:
        """As long as copying it takes."""
        return 1 / device.copy_bytes_s if device.copy_bytes_s else 0.0

    def encode(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """The nearest numbers of 16 bits."""
        return [tensor.to(torch.float16)]

    def decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Those numbers in the type they had."""
        return parts[0].to(dtype)


register(Half())

"""What a codec is.

Torch is here for the type checker only: whoever plans asks for bytes and seconds, and never encodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from potluck.types import DeviceProfile

if TYPE_CHECKING:
    import torch

FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})  # what codecs are given; all else travels raw


class Codec(Protocol):
    """How a floating-point tensor crosses a cut. It remembers nothing: the same tensor gives the same parts."""

    @property
    def name(self) -> str:
        """What a plan calls it; asked once, when it is registered."""

    @property
    def exact(self) -> bool:
        """Whether decoding gives back the very bits; asked when a run is compared with the uncut model."""

    def bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """What a tensor weighs on the wire; asked for every edge of every plan that is looked at, before it runs."""

    def seconds(self, device: DeviceProfile) -> float:
        """What a byte of a tensor costs the device, encoding or decoding; asked as often as `bytes`."""

    def encode(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """The tensors to send instead; called by the sender, for each value and receiver of each micro-batch."""

    def decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The tensor, of this shape and type, that parts stand for; called by the receiver of each message."""

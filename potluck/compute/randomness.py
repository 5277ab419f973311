"""Random masks as a function of (seed, round, micro-batch, program node, row).

Counter-based: a hash of the position replaces a generator's hidden state, so that a device which holds only some
rows draws exactly the rows of the whole micro-batch's mask, on any kind of device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_MASK = 0xFFFFFFFF


class Draw(NamedTuple):
    """Where in the run a mask is drawn."""

    seed: int
    round: int
    micro_batch: int
    row_start: int  # of the rows at hand, within the micro-batch


def _mix_int(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def _signed(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The same hash on int32, in place. int32 shifts are arithmetic, so the copied sign bits are masked away."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(0x846CA68B))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def keep_mask(shape: tuple[int, ...], rows: int, p: float, salt: int, draw: Draw, device: torch.device) -> torch.Tensor:
    """A boolean mask [rows, …]: True with probability 1 − p. `rows` divides into the draw's rows from `row_start`.

    shape[0] may be k·b (k entries of each sample); `rows` is then b.
    """
    key = 0
    for part in (draw.seed & _MASK, (draw.seed >> 32) & _MASK, draw.round, draw.micro_batch, salt):
        key = _mix_int((key + 0x9E3779B9 + part) & _MASK)
    count = 1
    for size in shape:
        count *= size
    per_row = count // max(rows, 1)
    row_ids = torch.arange(draw.row_start, draw.row_start + rows, dtype=torch.int32, device=device)
    row_keys = _mix(row_ids.mul_(_signed(0x9E3779B9)).add_(_signed(key)))
    cells = torch.arange(per_row, dtype=torch.int32, device=device).mul_(_signed(0x85EBCA6B))
    bits = _mix(row_keys.unsqueeze(1) + cells)
    threshold = _signed((round(p * (1 << 32)) & _MASK) ^ 0x80000000)
    return bits.bitwise_xor_(_signed(0x80000000)).ge_(threshold).to(torch.bool).view(shape)

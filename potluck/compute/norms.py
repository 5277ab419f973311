"""The squared norm of a gradient, whose bits must not depend on who computes it."""

from __future__ import annotations

import math

import torch

_AT_ONCE = 4096  # elements that are added in float32


def squared_norm(gradient: torch.Tensor) -> float:
    """Of all elements in logical order: the memory order of a gradient may depend on who summed it.

    In float32 a few thousand at a time are added as they are, which is eight times as fast as in float64 and exact to
    about 1e-7, and the sums of those in float64; where that overflows, everything in float64.
    """
    flat = gradient.contiguous().view(-1)
    whole = len(flat) // _AT_ONCE * _AT_ONCE
    if flat.dtype != torch.float32 or not whole:
        return _in_float64(flat)
    parts = torch.linalg.vector_norm(flat[:whole].view(-1, _AT_ONCE), dim=1)
    total = _in_float64(parts) + (_in_float64(flat[whole:]) if whole < len(flat) else 0.0)
    return total if math.isfinite(total) else _in_float64(flat)


def _in_float64(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2

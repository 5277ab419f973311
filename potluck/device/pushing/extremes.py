"""The samples of a data set that a model may have no place for: those with its outermost whole numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_FEWEST = 2  # rows: of a single one there is no variance


def extreme_samples(data: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The samples with the smallest and the largest whole number of every feed, below zero and from zero on.

    Both sides, as labels that are to be ignored may be far below zero.
    """
    rows: set[int] = set()
    for tensor in _whole_numbers(data).values():
        flat, width = tensor.reshape(-1), tensor[0].numel()
        for side in (flat < 0, flat >= 0):
            places = side.nonzero()[:, 0]
            if len(places):
                values = flat[places]
                rows |= {int(places[int(place)]) // width for place in (values.argmin(), values.argmax())}
    count = min(len(tensor) for tensor in data.values())
    chosen = sorted(rows | set(range(min(_FEWEST, count))))
    return {name: tensor[chosen] for name, tensor in data.items()}


def ranges(data: Mapping[str, torch.Tensor]) -> str:
    """From where to where the whole numbers of each feed go, in words."""
    found = _whole_numbers(data)
    return ", ".join(f"{name} is from {int(tensor.min())} to {int(tensor.max())}" for name, tensor in found.items())


def _whole_numbers(data: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Feeds that may number something that a model has."""
    return {
        name: tensor
        for name, tensor in data.items()
        if tensor.numel() and tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    }

"""Weights as Flower carries them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Arrays = list[Any]


def weights_of(model: torch.nn.Module) -> Arrays:
    """What a model has."""
    return [tensor.numpy() for tensor in model.state_dict().values()]


def load(model: torch.nn.Module, weights: Arrays) -> None:
    """Takes such weights."""
    names = model.state_dict().keys()
    model.load_state_dict({n: torch.from_numpy(np.copy(w)) for n, w in zip(names, weights, strict=True)})

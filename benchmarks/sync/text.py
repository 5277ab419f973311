"""Python's own source in pieces, and a small recurrent network that guesses the next byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

LENGTH, WIDTH, BYTES = 32, 128, 256
EVALUATED = 400  # pieces
Array = npt.NDArray[Any]


class Reader(nn.Module):
    """A gated recurrent layer between an embedding and the scores of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, WIDTH)
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.scores = nn.Linear(WIDTH, BYTES)

    def forward(self, pieces: Tensor) -> Tensor:
        """Scores at every place."""
        scores: Tensor = self.scores(self.memory(self.bytes(pieces))[0])
        return scores


def make_model(seed: int = 0) -> nn.Module:
    """A hundred and sixty thousand parameters."""
    torch.manual_seed(seed)
    return Reader()


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over all bytes."""
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def pieces(count: int) -> tuple[Array, Array]:
    """So many to train on, and what follows each of their bytes."""
    return _cut((count + EVALUATED) * LENGTH + 1, slice(EVALUATED, None))


def held_out() -> tuple[Array, Array]:
    """Others, to judge by."""
    return _cut(EVALUATED * LENGTH + 1, slice(0, EVALUATED))


def _cut(size: int, part: slice) -> tuple[Array, Array]:
    from potluck.datasets.text import stdlib_text  # here: whoever only trains may have no potluck

    text = np.frombuffer(stdlib_text(size), np.uint8).astype(np.int64)
    inputs, labels = (text[begin : begin + size - 1].reshape(-1, LENGTH) for begin in (0, 1))
    return inputs[part], labels[part]

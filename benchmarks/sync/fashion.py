"""Fashion-MNIST from where Debian puts it, and a small network for it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

FOLDER = Path("/usr/share/datasets/fashion-mnist")
EVALUATED = 1000  # of the test images: judging takes time from the same machine
Array = npt.NDArray[Any]


class FashionMissing(Exception):
    """The data is not on this machine."""


def make_model(seed: int = 0) -> nn.Module:
    """Two convolutions and two linear layers: a million parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 640), nn.ReLU(), nn.Linear(640, 10),
    )  # fmt: skip


def images(part: str, count: int | None = None, folder: Path = FOLDER) -> tuple[Array, Array]:
    """Images from -0.5 to 0.5 and their labels, of the part `train` or `t10k`."""
    files = [folder / f"{part}-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1")]
    if not all(file.is_file() for file in files):
        raise FashionMissing(f"{folder}: no Fashion-MNIST there; install it: apt-get install dataset-fashion-mnist")
    pixels, labels = (np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8) for file in files)
    shaped = pixels[16:].reshape(-1, 1, 28, 28).astype(np.float32) / 255 - 0.5
    return shaped[:count], labels[8:].astype(np.int64)[:count]


def training(count: int) -> tuple[Array, Array]:
    """So many to train on."""
    return images("train", count)


def held_out() -> tuple[Array, Array]:
    """Others, to judge by."""
    return images("t10k", EVALUATED)

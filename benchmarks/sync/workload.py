"""What workers learn: a model, its loss, samples to train on and to judge by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.sync import fashion, text

BATCH = 32
NAME = "fashion"  # unless another is asked for
Array = npt.NDArray[Any]
Samples = tuple[Array, Array]


class Workload(NamedTuple):
    """One of them. Learning rates are for SGD; a quick run takes the middle one."""

    make_model: Callable[[int], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    samples: Callable[[int], Samples]  # so many
    held_out: Callable[[], Samples]
    quick: int  # samples
    full: int
    rates: tuple[float, float, float]


WORKLOADS = {
    "fashion": Workload(
        fashion.make_model, functional.cross_entropy, fashion.training, fashion.held_out, 24_000, 60_000,
        (0.05, 0.1, 0.2),
    ),
    "text": Workload(text.make_model, text.loss, text.pieces, text.held_out, 12_000, 40_000, (0.5, 1.0, 2.0)),
}  # fmt: skip


def shards(labels: Array, workers: int, dirichlet: float | None, seed: int) -> list[Array]:
    """Sample numbers of each worker: equal random parts, or of each label parts by a Dirichlet distribution."""
    chance = np.random.default_rng(seed)
    if dirichlet is None:
        return np.array_split(chance.permutation(len(labels)), workers)
    if labels.ndim > 1:
        raise ValueError("a Dirichlet distribution needs one label for each sample, and these have several")
    found: list[list[Array]] = [[] for _ in range(workers)]
    for label in np.unique(labels):
        members = chance.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(chance.dirichlet([dirichlet] * workers))[:-1] * len(members)).astype(int)
        for mine, part in zip(found, np.split(members, cuts), strict=True):
            mine.append(part)
    return [chance.permutation(np.concatenate(parts)) for parts in found]


def write_shards(
    work: Workload, folder: Path, names: tuple[str, ...], samples: int, dirichlet: float | None, seed: int
) -> None:
    """NAME.npz for every worker, and test.npz to judge by."""
    inputs, labels = work.samples(samples)
    for name, part in zip(names, shards(labels, len(names), dirichlet, seed), strict=True):
        np.savez(folder / f"{name}.npz", input=inputs[part], label=labels[part])
    test, test_labels = work.held_out()
    np.savez(folder / "test.npz", input=test, label=test_labels)

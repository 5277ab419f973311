"""One process: what loss it reaches after some epochs, or how fast a device is by itself.

python -m benchmarks.sync.alone --data w1.npz --seconds 8
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.sync.fashion import BATCH, images, make_model


def losses_after(epochs: tuple[int, ...], samples: int, rate: float, seed: int, test: Path) -> list[float]:
    """The held-out loss of plain training after each of these numbers of epochs."""
    inputs, labels = (torch.from_numpy(a) for a in images("train", samples))
    held_out = np.load(test)
    judged = torch.from_numpy(held_out["input"]), torch.from_numpy(held_out["label"])
    model, found = make_model(seed), []
    for epoch in range(1, max(epochs) + 1):
        for _ in _steps(model, inputs, labels, rate, seed + epoch):
            pass
        if epoch in epochs:
            with torch.no_grad():
                found.append(float(functional.cross_entropy(model(judged[0]), judged[1])))
    return found


def _steps(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, rate: float, seed: int) -> Iterator[int]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    for part in order[: len(order) // BATCH * BATCH].split(BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[part]), labels[part]).backward()
        optimizer.step()
        yield len(part)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--seconds", default=8.0, show_default=True)
def main(data: Path, seconds: float) -> None:
    """Trains for so long and says how many samples a second that was."""
    torch.set_num_threads(1)
    owned = np.load(data)
    inputs, labels = torch.from_numpy(owned["input"]), torch.from_numpy(owned["label"])
    model, trained, epoch = make_model(), 0, 0
    next(_steps(model, inputs, labels, 0.01, epoch))  # loads kernels
    print("ready", flush=True)
    sys.stdin.read()  # until all are
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        epoch += 1
        for count in _steps(model, inputs, labels, 0.01, epoch):
            trained += count
            if time.monotonic() - began >= seconds:
                break
    print(json.dumps({"samples_per_s": trained / (time.monotonic() - began)}))


if __name__ == "__main__":
    main()

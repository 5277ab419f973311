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

from benchmarks.sync.workload import BATCH, NAME, WORKLOADS, Workload


def losses_after(work: Workload, epochs: tuple[int, ...], samples: int, rate: float, seed: int) -> list[float]:
    """The held-out loss of plain training after each of these numbers of epochs."""
    inputs, labels = (torch.from_numpy(a) for a in work.samples(samples))
    judged, expected = (torch.from_numpy(a) for a in work.held_out())
    model, found = work.make_model(seed), []
    for epoch in range(1, max(epochs) + 1):
        for _ in _steps(work, model, inputs, labels, rate, seed + epoch):
            pass
        if epoch in epochs:
            with torch.no_grad():
                found.append(float(work.loss(model(judged), expected)))
    return found


def _steps(
    work: Workload, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, rate: float, seed: int
) -> Iterator[int]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    for part in order[: len(order) // BATCH * BATCH].split(BATCH):
        optimizer.zero_grad()
        work.loss(model(inputs[part]), labels[part]).backward()
        optimizer.step()
        yield len(part)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--seconds", default=8.0, show_default=True)
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default=NAME, show_default=True)
def main(data: Path, seconds: float, workload: str) -> None:
    """Trains for so long and says how many samples a second that was."""
    torch.set_num_threads(1)
    work, owned = WORKLOADS[workload], np.load(data)
    inputs, labels = torch.from_numpy(owned["input"]), torch.from_numpy(owned["label"])
    model, trained, epoch = work.make_model(0), 0, 0
    next(_steps(work, model, inputs, labels, 0.01, epoch))  # loads kernels
    print("ready", flush=True)
    sys.stdin.read()  # until all are
    began, began_cpu = time.monotonic(), time.thread_time()
    while time.monotonic() - began < seconds:
        epoch += 1
        for count in _steps(work, model, inputs, labels, 0.01, epoch):
            trained += count
            if time.monotonic() - began >= seconds:
                break
    taken, spent = time.monotonic() - began, time.thread_time() - began_cpu
    print(json.dumps({"samples_per_s": trained / taken, "cpu_s_per_s": spent / taken}))


if __name__ == "__main__":
    main()

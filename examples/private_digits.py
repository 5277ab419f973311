"""Digits that stay where they are: three devices, each with digits that the others hardly have. Nothing is downloaded.

    python examples/private_digits.py shards
    potluck train examples/private_digits.py --sync ours --local a=1,b=0.5,c=0.25 --data digits=shards/{device}.npz

The first line writes a file for each device: a has mostly 0 to 3, b mostly 3 to 6, c mostly 6 to 9. The second trains
one model on all three; no sample leaves its device, and none of them waits for another. On real devices, say
`potluck join HOST:PORT --data digits=MY_FILE.npz` on each.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.datasets.digits import digits

DEVICES = ("a", "b", "c")
KEPT = 0.8  # of each device's samples are of its own digits; the others are mixed


def make_model() -> nn.Module:
    """Return two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the fraction of digits read correctly."""
    return (outputs.argmax(1) == labels).float().mean().item()


def write_shards(folder: Path) -> None:
    """Write the samples of each device as NAME.npz."""
    inputs, labels, _, _ = digits()
    chance = np.random.default_rng(0)
    by_label = np.argsort(labels, kind="stable")
    mixed = chance.random(len(labels)) > KEPT
    by_label[mixed] = chance.permutation(by_label[mixed])
    folder.mkdir(parents=True, exist_ok=True)
    for device, part in zip(DEVICES, np.array_split(by_label, len(DEVICES)), strict=True):
        np.savez(folder / f"{device}.npz", input=inputs[part], label=labels[part])
        print(f"{folder / device}.npz: {len(part)} samples, of each digit {np.bincount(labels[part], minlength=10)}")


_, _, test_images, test_labels = (torch.from_numpy(a) for a in digits())

job = potluck.Job(
    model=make_model,
    loss=F.cross_entropy,
    optimizer=potluck.SGD(lr=0.1, momentum=0.5),
    data="digits",
    eval_data=(test_images, test_labels),
    metrics={"accuracy": accuracy},
    best="accuracy",
    batch_size=20,
    epochs=30,
    eval_every=300,
)

if __name__ == "__main__":
    write_shards(Path(sys.argv[1] if len(sys.argv) > 1 else "shards"))

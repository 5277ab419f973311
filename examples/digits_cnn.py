"""Handwritten digits with a small convolutional network: the first job to try. Nothing is downloaded.

    potluck train examples/digits_cnn.py --local 1,0.5,0.25

trains it on three emulated devices: one at full speed, one at half, one at a quarter. About 98 % of the test digits are
read correctly after ten epochs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.datasets.digits import digits

EPOCHS = 10
BATCH_SIZE = 100


def make_model() -> nn.Module:
    """Return four convolutions and a linear layer."""

    def convolution(width_in: int, width_out: int, stride: int = 1) -> list[nn.Module]:
        return [
            nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False),
            nn.GroupNorm(4, width_out),
            nn.ReLU(),
        ]

    layers = convolution(1, 32) + convolution(32, 32) + convolution(32, 64, 2) + convolution(64, 64)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the fraction of digits read correctly."""
    return (outputs.argmax(1) == labels).float().mean().item()


images, labels, test_images, test_labels = (torch.from_numpy(a) for a in digits())

job = potluck.Job(
    model=make_model,
    loss=F.cross_entropy,
    optimizer=potluck.SGD(lr=0.1, momentum=0.9, weight_decay=1e-4),
    schedule=potluck.Cosine(total=EPOCHS * len(images) // BATCH_SIZE, warmup=15),
    data=(images, labels),
    eval_data=(test_images, test_labels),
    batch_size=BATCH_SIZE,
    micro_batch_size=10,
    epochs=EPOCHS,
    metrics={"accuracy": accuracy},
)

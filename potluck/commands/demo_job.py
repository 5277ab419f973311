"""The demo's job: a small convolutional network learns to read handwritten digits. Nothing is downloaded.

A job file like any other: `potluck train` and `potluck verify` take it too.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.datasets.digits import digits

EPOCHS = 6  # enough to know 99 of 100 digits, in half a minute
BATCH_SIZE = 60  # samples: divides the 1500 there are, and makes five micro-batches


def make_model() -> nn.Module:
    """Four convolutions and a linear layer."""

    def convolution(width_in: int, width_out: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        return [layer, nn.GroupNorm(4, width_out), nn.ReLU()]

    layers = convolution(1, 32) + convolution(32, 32) + convolution(32, 64, 2) + convolution(64, 64)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The fraction of digits read correctly."""
    return (outputs.argmax(1) == labels).float().mean().item()


images, labels, test_images, test_labels = (torch.from_numpy(a) for a in digits())

job = potluck.Job(
    model=make_model,
    loss=F.cross_entropy,
    optimizer=potluck.AdamW(lr=3e-3),
    schedule=potluck.Cosine(total=EPOCHS * len(images) // BATCH_SIZE, warmup=10),
    data=(images, labels),
    eval_data=(test_images, test_labels),
    batch_size=BATCH_SIZE,
    micro_batch_size=12,
    epochs=EPOCHS,
    metrics={"accuracy": accuracy},
)

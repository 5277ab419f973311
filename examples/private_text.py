"""Text that stays where it is: three devices, each with other pages, learn one model of bytes. Nothing is downloaded.

    python examples/private_text.py pages
    potluck train examples/private_text.py --sync ours --local a=1,b=0.5,c=0.25 --data text=pages/{device}.txt

The first line writes a text for each device, from different parts of Python's own source. Watch `bits_per_byte` fall: 8
is guessing.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.datasets.text import stdlib_text

DEVICES = ("a", "b", "c")
LENGTH, WIDTH = 32, 64
TEXT = np.frombuffer(stdlib_text(620_000), dtype=np.uint8)


class Reader(nn.Module):
    """Two layers over the last four bytes, between an embedding and the scores of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.mix = nn.Sequential(nn.Linear(4 * WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 4 * WIDTH), nn.GELU())
        self.head = nn.Linear(4 * WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the next byte at every place, from the last four bytes."""
        seen = self.tokens(tokens)
        before = [F.pad(seen, (0, 0, shift, 0))[:, : tokens.shape[1]] for shift in range(4)]
        return self.head(self.mix(torch.cat(before, -1)))  # type: ignore[no-any-return]


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over all bytes."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def bits_per_byte(outputs: Tensor, labels: Tensor) -> float:
    """Return how many bits a byte takes, by these scores."""
    return loss(outputs, labels).item() / math.log(2)


def write_pages(folder: Path) -> None:
    """Write a text for each device as NAME.txt; the end of all text stays with the coordinator, to judge by."""
    folder.mkdir(parents=True, exist_ok=True)
    for device, part in zip(DEVICES, np.array_split(TEXT[:-20_000], len(DEVICES)), strict=True):
        (folder / f"{device}.txt").write_bytes(part.tobytes())
        print(f"{folder / device}.txt: {len(part)} bytes")


held_out = torch.from_numpy(TEXT[-20_000:].astype(np.int64))
windows = (len(held_out) - 1) // LENGTH

job = potluck.Job(
    model=Reader,
    loss=loss,
    optimizer=potluck.Adam(lr=2e-3),
    data="text",
    eval_data=(held_out[: windows * LENGTH].view(-1, LENGTH), held_out[1 : windows * LENGTH + 1].view(-1, LENGTH)),
    metrics={"bits_per_byte": bits_per_byte},
    batch_size=32,
    rounds=1500,
    eval_every=150,
)

if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "pages"))

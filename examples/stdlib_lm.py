"""A language model of bytes that learns Python from the source of the standard library. Nothing is downloaded.

    potluck train examples/stdlib_lm.py --local 1,0.5,0.25

The embedding and the output layer share one weight, so the first and the last stage must agree on it in every round.
Watch `bits_per_byte` fall: 8 is guessing, and these 200 rounds bring it to about 3.3.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.datasets.text import stdlib_text

LENGTH = 64
WIDTH = 96
HEADS = 4
ROUNDS = 200


class Layer(nn.Module):
    """One layer of a causal transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return x after attention to what came before, and the MLP."""
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Four layers, with the embedding used again as the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(4)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the next byte at every place."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.layers(x)))  # type: ignore[no-any-return]


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of the next byte."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def bits_per_byte(outputs: Tensor, labels: Tensor) -> float:
    """Return how many bits a compressor using this model would need for a byte."""
    return loss(outputs, labels).item() / math.log(2)


def windows(text: bytes) -> tuple[Tensor, Tensor]:
    """Return rows of the text, and the same rows one byte ahead."""
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = (len(values) - 1) // LENGTH
    return values[: count * LENGTH].view(count, LENGTH), values[1 : count * LENGTH + 1].view(count, LENGTH)


text = stdlib_text(2_000_000)

job = potluck.Job(
    model=Gpt,
    loss=loss,
    loss_weight="tokens",
    optimizer=potluck.AdamW(lr=3e-3, weight_decay=0.01),
    schedule=potluck.Cosine(total=ROUNDS, warmup=20, floor=0.1),
    clip_norm=1.0,
    data=windows(text[:-10_000]),
    eval_data=windows(text[-10_000:]),
    batch_size=32,
    micro_batch_size=4,
    rounds=ROUNDS,
    eval_every=50,
    metrics={"bits_per_byte": bits_per_byte},
)

"""Small transformers: tied weights, padding, sequence-first layout, dropout, frozen weights with adapters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.case import IGNORED, Case, Inputs, images, next_tokens, padded_tokens, seeded, token_loss

VOCABULARY = 256
WIDTH = 64
HEADS = 4
LENGTH = 32


class Attention(nn.Module):
    """Multi-head self-attention, written out; `bias` is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return the attended values, projected."""
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS) + bias
        mixed = scores.softmax(-1) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return the layer's output."""
        x = x + self.attention(self.norm1(x), bias)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Decoder(nn.Module):
    """GPT-like: the head shares its weight with the embedding, the causal mask is made of -inf in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the next token at every place."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        causal = torch.full((length, length), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        for layer in self.layers:
            x = layer(x, causal)
        out: Tensor = self.head(self.norm(x))
        return out


class PaddedEncoder(nn.Module):
    """BERT-like: padding takes no part in attention."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return scores of every token."""
        x = self.tokens(tokens) + self.positions
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, float("-inf"))[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        out: Tensor = self.head(x)
        return out


class SequenceFirst(nn.Module):
    """nn.TransformerEncoder in its default layout: inside, the batch is axis 1."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return class scores."""
        x = self.encoder(self.tokens(tokens).transpose(0, 1))
        out: Tensor = self.head(x.mean(0))
        return out


class DropoutNet(nn.Module):
    """Channel dropout, attention dropout inside the fused operator, and plain dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.channels = nn.Dropout2d(0.1)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        x = self.channels(self.patch(x)).flatten(2).transpose(1, 2)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1, self.training)
        x = x + self.mlp(self.norm2(x))
        out: Tensor = self.head(x.mean(1))
        return out


class Adapter(nn.Module):
    """A frozen linear layer and a trainable low-rank correction that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return base(x) plus the correction."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted() -> nn.Module:
    """Return a frozen decoder of which only adapters and the head's norm are trained."""
    model = Decoder()
    model.requires_grad_(False)
    model.norm.requires_grad_(True)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        layer.attention.qkv = Adapter(layer.attention.qkv)  # type: ignore[assignment]
        layer.attention.out = Adapter(layer.attention.out)  # type: ignore[assignment]
    return model


def decoder() -> Case:
    """Return a language model with tied embeddings."""
    return Case(
        name="decoder",
        make_model=seeded(Decoder),
        loss=token_loss,
        example=next_tokens(VOCABULARY, LENGTH),
        loss_weight="tokens",
        tied=True,
    )


def padded_encoder() -> Case:
    """Return an encoder with two inputs, of whose tokens an unequal number counts in each row."""

    def example(n: int, seed: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        random = torch.Generator().manual_seed(seed)
        tokens, mask = padded_tokens(random, n, VOCABULARY, LENGTH)
        counted = mask & (torch.rand(n, LENGTH, generator=random) < 0.5)
        counted[:, 0] = True  # a row without any would have no mean
        return (tokens, mask), tokens.masked_fill(~counted, IGNORED)

    return Case(
        name="padded_encoder",
        make_model=seeded(PaddedEncoder),
        loss=token_loss,
        example=example,
        loss_weight="tokens",
    )


def sequence_first() -> Case:
    """Return an encoder whose batch axis is not the first."""

    def example(n: int, seed: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(VOCABULARY, (n, LENGTH), generator=random)
        return tokens, torch.randint(10, (n,), generator=random)

    return Case(name="sequence_first", make_model=seeded(SequenceFirst), loss=F.cross_entropy, example=example)


def dropout_net() -> Case:
    """Return a network that draws random numbers in four places."""
    return Case(
        name="dropout_net",
        make_model=seeded(DropoutNet),
        loss=F.cross_entropy,
        example=images(3, 32, 10),
        dropout=True,
    )


def adapters() -> Case:
    """Return a frozen backbone with small trainable adapters."""
    return Case(
        name="adapters",
        make_model=seeded(adapted),
        loss=token_loss,
        example=next_tokens(VOCABULARY, LENGTH),
        loss_weight="tokens",
        tied=True,
    )

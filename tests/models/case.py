"""What a model of the zoo is: how to build it, how to feed it, and which traits make it hard to cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]

IGNORED = -100  # label of a token that does not count


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with a loss and examples. Every tensor of `example` has the batch as its first axis."""

    name: str
    make_model: Callable[[], nn.Module]  # the same weights at every call, float32, in training mode
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) → mean
    example: Callable[[int, int, torch.dtype], tuple[Inputs, Tensor]]  # (n, seed, dtype) → inputs, labels
    loss_weight: Literal["samples", "tokens"] = "samples"  # what the loss is the mean over
    dropout: bool = False  # draws random numbers in training
    batch_coupled: bool = False  # one sample's result depends on the others
    tied: bool = False  # a parameter is used in two places
    hf: bool = False  # needs transformers


def call(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the model's outputs, whatever shape its inputs come in."""
    match inputs:
        case Tensor():
            outputs = model(inputs)
        case tuple():
            outputs = model(*inputs)
        case _:
            outputs = model(**inputs)
    assert isinstance(outputs, Tensor)
    return outputs


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return `build` with weights that do not depend on what was drawn before, and that disturb no later draw."""

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build().train()

    return make


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy over the tokens that count."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def images(channels: int, side: int, classes: int) -> Callable[[int, int, torch.dtype], tuple[Inputs, Tensor]]:
    """Return a maker of random images with one label each."""

    def example(n: int, seed: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        random = torch.Generator().manual_seed(seed)
        # Drawn in float64 and rounded, so that both precisions see the same samples.
        pixels = torch.randn(n, channels, side, side, generator=random, dtype=torch.float64).to(dtype)
        return pixels, torch.randint(classes, (n,), generator=random)

    return example


def next_tokens(vocabulary: int, length: int) -> Callable[[int, int, torch.dtype], tuple[Inputs, Tensor]]:
    """Return a maker of random token rows, each labelled with itself one token ahead."""

    def example(n: int, seed: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(vocabulary, (n, length + 1), generator=random)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return example


def padded_tokens(random: torch.Generator, n: int, vocabulary: int, length: int) -> tuple[Tensor, Tensor]:
    """Return tokens and a mask that is true where a token is real; rows have unequal lengths, at least a quarter."""
    tokens = torch.randint(1, vocabulary, (n, length), generator=random)
    lengths = torch.randint(length // 4, length + 1, (n,), generator=random)
    mask = torch.arange(length) < lengths[:, None]
    return tokens.masked_fill(~mask, 0), mask

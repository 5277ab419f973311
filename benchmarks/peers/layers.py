"""The workloads' models as lists of layers: what a user of pipelining writes by hand to cut them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def layers(name: str, model: nn.Module) -> list[nn.Module]:
    """The model as modules to run one after another: what is before its blocks, the blocks, the head."""
    return list(_CUTS[name](model.model))


def even_span(layer_count: int, stage: int, stages: int) -> range:
    """The layers of one stage: equal numbers for all; the first ones take the remainder."""
    if layer_count < stages:
        raise ValueError(f"{layer_count} layers for {stages} stages; use at most {layer_count} ranks")
    each, more = divmod(layer_count, stages)
    start = stage * each + min(stage, more)
    return range(start, start + each + (stage < more))


def _mobilenet_v2(model: Any) -> list[nn.Module]:
    body = model.mobilenet_v2
    return [body.conv_stem, *body.layer, nn.Sequential(body.conv_1x1, body.pooler, nn.Flatten(), model.classifier)]


def _resnet50(model: Any) -> list[nn.Module]:
    body = model.resnet
    blocks = [block for stage in body.encoder.stages for block in stage.layers]
    return [body.embedder, *blocks, nn.Sequential(body.pooler, model.classifier)]


def _efficientnet_b1(model: Any) -> list[nn.Module]:
    body, encoder = model.efficientnet, model.efficientnet.encoder
    top = (encoder.top_conv, encoder.top_bn, encoder.top_activation)
    return [body.embeddings, *encoder.blocks, nn.Sequential(*top, body.pooler, nn.Flatten(), model.classifier)]


def _bert_small(model: Any) -> list[nn.Module]:
    body = model.bert
    return [body.embeddings, *body.encoder.layer, nn.Sequential(body.pooler, model.classifier)]


def _gpt_10m(model: Any) -> list[nn.Module]:
    body = model.transformer
    return [_TokenEmbedding(body.wte, body.wpe), *body.h, nn.Sequential(body.ln_f, model.lm_head)]


class _TokenEmbedding(nn.Module):
    """Tokens and their positions as vectors."""

    def __init__(self, tokens: nn.Embedding, positions: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.positions = tokens, positions

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        out: Tensor = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return out


_CUTS: dict[str, Callable[[Any], Sequence[nn.Module]]] = {
    "mobilenet_v2": _mobilenet_v2,
    "resnet50": _resnet50,
    "efficientnet_b1": _efficientnet_b1,
    "bert_small": _bert_small,
    "gpt_10m": _gpt_10m,
}

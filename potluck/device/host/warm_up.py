"""One tiny training step of everything common: libraries load their code and buffers now, not in the first round."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def warm_up(device: torch.device) -> None:
    """Runs convolutions, matrix products, norms and attention forward and backward once. Takes some milliseconds."""
    images = torch.ones(4, 32, 8, 8, device=device)
    mix = torch.ones(32, 32, 1, 1, device=device, requires_grad=True)
    each = torch.ones(32, 1, 3, 3, device=device, requires_grad=True)
    features = F.conv2d(F.conv2d(images, mix), each, padding=1, groups=32)
    features = F.relu(F.batch_norm(features, None, None, training=True))
    weight = torch.ones(2048, 64, device=device, requires_grad=True)
    tokens = F.gelu(features.flatten(1) @ weight).reshape(4, 1, 8, 8)
    tokens = F.scaled_dot_product_attention(tokens, tokens, tokens)
    logits = F.layer_norm(tokens.flatten(1), (64,))
    loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long, device=device))
    # With a gradient that is given, as between stages, torch loads half a CPU second of code at the first call.
    torch.autograd.backward([loss], [torch.ones_like(loss)])

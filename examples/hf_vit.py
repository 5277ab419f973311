"""A vision transformer of the `transformers` library, built from its config, on enlarged digits. Nothing is downloaded.

    pip install 'potluck[hf]'
    potluck train examples/hf_vit.py --local 1,0.5,0.25

The model is taken as it is: no line of it knows about devices or stages. Fifteen epochs reach about 93 %.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.datasets.digits import digits

SIDE = 32
EPOCHS = 15
BATCH_SIZE = 100


def make_model() -> nn.Module:
    """Return a ViT of four layers with 16 patches."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=SIDE,
        patch_size=8,
        num_channels=1,
        num_labels=10,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config)  # type: ignore[no-any-return]


def accuracy(outputs: Any, labels: Tensor) -> float:
    """Return the fraction of digits read correctly."""
    logits: Tensor = outputs.logits
    return (logits.argmax(1) == labels).float().mean().item()


def enlarge(images: Tensor) -> Tensor:
    """Return the images at 32 by 32 pixels."""
    return F.interpolate(images, size=(SIDE, SIDE), mode="bilinear", align_corners=False)


images, labels, test_images, test_labels = (torch.from_numpy(a) for a in digits())

job = potluck.Job(
    model=make_model,
    loss=lambda outputs, labels: F.cross_entropy(outputs.logits, labels),
    optimizer=potluck.AdamW(lr=3e-3, weight_decay=0.01),
    schedule=potluck.Cosine(total=EPOCHS * len(images) // BATCH_SIZE, warmup=15),
    clip_norm=1.0,
    data=(enlarge(images), labels),
    eval_data=(enlarge(test_images), test_labels),
    batch_size=BATCH_SIZE,
    micro_batch_size=20,
    epochs=EPOCHS,
    metrics={"accuracy": accuracy},
)

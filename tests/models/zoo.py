"""The model zoo: small but real models, between them every trait that makes a model hard to cut."""

from __future__ import annotations

from tests.models.case import IGNORED, Case, Inputs, call
from tests.models.zoo_hf import (
    hf_bert_small,
    hf_efficientnet_b1,
    hf_gpt2,
    hf_llama,
    hf_mobilenet_v2,
    hf_resnet50,
    hf_vit,
)
from tests.models.zoo_text import adapters, decoder, dropout_net, padded_encoder, sequence_first
from tests.models.zoo_vision import inverted_residual, mlp, residual_cnn, unet

__all__ = [
    "IGNORED",
    "Case",
    "Inputs",
    "adapters",
    "all_cases",
    "call",
    "core_cases",
    "decoder",
    "dropout_net",
    "hf_bert_small",
    "hf_cases",
    "hf_efficientnet_b1",
    "hf_gpt2",
    "hf_llama",
    "hf_mobilenet_v2",
    "hf_resnet50",
    "hf_vit",
    "inverted_residual",
    "mlp",
    "padded_encoder",
    "residual_cnn",
    "sequence_first",
    "unet",
]


def core_cases() -> tuple[Case, ...]:
    """Return the models written here."""
    return (
        mlp(),
        residual_cnn(),
        inverted_residual(),
        unet(),
        decoder(),
        padded_encoder(),
        sequence_first(),
        dropout_net(),
        adapters(),
    )


def hf_cases() -> tuple[Case, ...]:
    """Return the models of `transformers`, which is imported only when one is built."""
    return (
        hf_resnet50(),
        hf_mobilenet_v2(),
        hf_efficientnet_b1(),
        hf_bert_small(),
        hf_gpt2(),
        hf_vit(),
        hf_llama(),
    )


def all_cases() -> tuple[Case, ...]:
    """Return every model of the zoo."""
    return core_cases() + hf_cases()

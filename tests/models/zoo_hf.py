"""Architectures of `transformers`, built from config at a small size with every dropout off. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.case import Case, Inputs, images, next_tokens, padded_tokens, seeded, token_loss

SIDE = 32
CLASSES = 10
VOCABULARY = 512
LENGTH = 32


class Logits(nn.Module):
    """Returns only the logits of a model with one input."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(inputs).logits
        return logits


class MaskedLogits(Logits):
    """Returns only the logits of a model that takes tokens and a padding mask."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        """Return the logits."""
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits


def _image_case(name: str, build: Callable[[], nn.Module], batch_coupled: bool) -> Case:
    """Return a case that classifies images of 32 by 32 pixels."""
    return Case(
        name=name,
        make_model=seeded(build),
        loss=F.cross_entropy,
        example=images(3, SIDE, CLASSES),
        batch_coupled=batch_coupled,
        hf=True,
    )


def hf_resnet50(width: float = 0.25) -> Case:
    """Return ResNet-50 in its full depth; `width=1` is the published one, several times slower."""

    def build() -> nn.Module:
        from transformers import ResNetConfig, ResNetForImageClassification

        config = ResNetConfig(
            num_labels=CLASSES,
            embedding_size=int(64 * width),
            hidden_sizes=[int(w * width) for w in (256, 512, 1024, 2048)],
            depths=[3, 4, 6, 3],
            layer_type="bottleneck",
        )
        return Logits(ResNetForImageClassification(config))

    return _image_case("hf_resnet50", build, batch_coupled=True)


def hf_mobilenet_v2() -> Case:
    """Return MobileNetV2, full size."""

    def build() -> nn.Module:
        from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

        config = MobileNetV2Config(num_labels=CLASSES, image_size=SIDE, classifier_dropout_prob=0.0)
        return Logits(MobileNetV2ForImageClassification(config))

    return _image_case("hf_mobilenet_v2", build, batch_coupled=True)


def hf_efficientnet_b1() -> Case:
    """Return EfficientNet-B1, full size."""

    def build() -> nn.Module:
        from transformers import EfficientNetConfig, EfficientNetForImageClassification

        config = EfficientNetConfig(
            num_labels=CLASSES,
            image_size=SIDE,
            width_coefficient=1.0,
            depth_coefficient=1.1,
            hidden_dim=1280,
            dropout_rate=0.0,
            drop_connect_rate=0.0,
            initializer_range=0.1,  # with the usual 0.02 the signal dies on the way: outputs of 1e-32
        )
        return Logits(EfficientNetForImageClassification(config))

    return _image_case("hf_efficientnet_b1", build, batch_coupled=True)


def hf_vit() -> Case:
    """Return a vision transformer of four layers."""

    def build() -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            num_labels=CLASSES,
            image_size=SIDE,
            patch_size=4,
            hidden_size=96,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
        return Logits(ViTForImageClassification(config))

    return _image_case("hf_vit", build, batch_coupled=False)


def hf_bert_small() -> Case:
    """Return a BERT of four layers that classifies padded rows."""

    def build() -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            num_labels=CLASSES,
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
        return MaskedLogits(BertForSequenceClassification(config))

    def example(n: int, seed: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        random = torch.Generator().manual_seed(seed)
        tokens, mask = padded_tokens(random, n, VOCABULARY, LENGTH)
        labels = torch.randint(CLASSES, (n,), generator=random)
        return {"input_ids": tokens, "attention_mask": mask.long()}, labels

    return Case(name="hf_bert_small", make_model=seeded(build), loss=F.cross_entropy, example=example, hf=True)


def hf_gpt2() -> Case:
    """Return a GPT-2 of four layers; its head shares the embedding's weight."""

    def build() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=128,
            n_layer=4,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            attn_implementation="sdpa",
        )
        return Logits(GPT2LMHeadModel(config))

    return Case(
        name="hf_gpt2",
        make_model=seeded(build),
        loss=token_loss,
        example=next_tokens(VOCABULARY, LENGTH),
        loss_weight="tokens",
        tied=True,
        hf=True,
    )


def hf_llama() -> Case:
    """Return a Llama of four layers with grouped heads. Its norms and rotary tables compute in float32 by design."""

    def build() -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2 * LENGTH,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=False,
            attention_dropout=0.0,
            use_cache=False,
            attn_implementation="sdpa",
        )
        return Logits(LlamaForCausalLM(config))

    return Case(
        name="hf_llama",
        make_model=seeded(build),
        loss=token_loss,
        example=next_tokens(VOCABULARY, LENGTH),
        loss_weight="tokens",
        hf=True,
    )

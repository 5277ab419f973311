"""Models to measure, each as a potluck job and, for other systems, as a plain model with its loss and samples.

Nothing is random but the data, which is the same at every call, and no dropout: whoever trains one of these on the same
micro-batches computes the same update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import potluck
from potluck.errors import InputError
from tests.models.case import Case, Inputs, next_tokens, seeded
from tests.models.zoo_hf import CLASSES, Logits, hf_efficientnet_b1, hf_mobilenet_v2, hf_resnet50

BATCH = 240
MICRO_BATCH = 8
BATCHES = 2  # of different samples; they repeat after that
LENGTH = 64  # tokens of a row
LEARNING_RATE = 0.01
MOMENTUM = 0.9


@dataclass(frozen=True)
class Workload:
    """A job to measure and its number of rounds."""

    job: potluck.Job
    rounds: int


def workload(name: str, rounds: int, batch: int = BATCH, micro_batch: int = MICRO_BATCH) -> Workload:
    """A named workload as a job. A micro-batch that does not divide the batch is refused by the job."""
    case = plain(name)
    return Workload(
        potluck.Job(
            model=case.make_model,
            loss=case.loss,
            optimizer=potluck.SGD(lr=LEARNING_RATE, momentum=MOMENTUM),
            data=samples(case, batch),
            batch_size=batch,
            micro_batch_size=micro_batch,
            rounds=rounds,
            checkpoint_every=10**9,
        ),
        rounds,
    )


def plain(name: str) -> Case:
    """A named workload for any trainer: how to build the model, its loss, its samples."""
    if name not in WORKLOADS:
        raise InputError(f"no workload {name!r}; give one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]()


def samples(case: Case, batch: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Inputs and labels of two different global batches."""
    inputs, labels = case.example(BATCHES * batch, 0, dtype)
    assert isinstance(inputs, Tensor), "every workload has one input"
    return inputs, labels


def sgd(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of `workload`'s job, as PyTorch has it."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def token_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy over samples, or over every token of every sample."""
    return nn.functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))


def bert_small() -> Case:
    """BERT-small as published (28.8 million parameters, more than half of them the embedding), classifying rows."""
    words = 30522

    def build() -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            num_labels=CLASSES, vocab_size=words, hidden_size=512, intermediate_size=2048, num_hidden_layers=4,
            num_attention_heads=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return Logits(BertForSequenceClassification(config))

    def example(n: int, seed: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(words, (n, LENGTH), generator=random)
        return tokens, torch.randint(CLASSES, (n,), generator=random)

    return Case(name="bert_small", make_model=seeded(build), loss=token_loss, example=example, hf=True)


def gpt(name: str, words: int, length: int, width: int, layers: int) -> Case:
    """A decoder that predicts the next token; its head shares the embedding's weight."""

    def build() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=words, n_positions=length, n_embd=width, n_layer=layers, n_head=layers, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return Logits(GPT2LMHeadModel(config))

    example = next_tokens(words, length)
    return Case(name=name, make_model=seeded(build), loss=token_loss, example=example, tied=True, hf=True)


def gpt_10m() -> Case:
    """A decoder of ten million parameters."""
    return gpt("gpt_10m", words=1024, length=LENGTH, width=384, layers=6)


WORKLOADS: dict[str, Callable[[], Case]] = {
    "mobilenet_v2": hf_mobilenet_v2,
    "resnet50": lambda: hf_resnet50(width=1.0),
    "efficientnet_b1": hf_efficientnet_b1,
    "bert_small": bert_small,
    "gpt_10m": gpt_10m,
}

"""Models of `transformers` as their configs make them, caches on, are trained and judged as in a plain loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.coordinator.samples.loading import evaluation_loader
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.serving.whole_evaluation import WholeEvaluation
from potluck.model.forms import call_model
from tests.unit.model.pipeline import MOMENTUM, MicroBatch, Pipeline, differing, even_cuts, uncut, uncut_tensors

pytestmark = [pytest.mark.hf, pytest.mark.usefixtures("one_thread")]

WORDS, CLASSES, SAMPLES = 50, 3, 10
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **still, bos_token_id=0, eos_token_id=0))


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **SMALL))


def bert(**dropout: float) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=CLASSES, **SMALL, **dropout))


def still_bert() -> Any:
    return bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, num_labels=CLASSES, **SMALL))


class Named(torch.utils.data.Dataset[Any]):
    """Samples with named inputs."""

    def __init__(self, of_sample: Tensor, **inputs: Tensor) -> None:
        self.of_sample, self.inputs = of_sample, inputs

    def __len__(self) -> int:
        return len(self.of_sample)

    def __getitem__(self, index: int) -> Any:
        return {name: tensor[index] for name, tensor in self.inputs.items()}, self.of_sample[index]


def tokens(seed: int) -> Tensor:
    return torch.randint(1, WORDS, (SAMPLES, 8), generator=torch.Generator().manual_seed(seed))


def classes() -> Tensor:
    return torch.randint(CLASSES, (SAMPLES,), generator=torch.Generator().manual_seed(3))


def images() -> Tensor:
    return torch.randn(SAMPLES, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def of_tokens(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())


def of_classes(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits, labels)


def own(outputs: Any, labels: Tensor) -> Tensor:
    loss: Tensor = outputs.loss
    return loss


@dataclasses.dataclass(frozen=True)
class Kind:
    make: Callable[[], Any]
    loss: Callable[..., Tensor]
    data: Callable[[], Any]
    cache: bool = False
    tied: bool = False


def masked() -> Named:
    return Named(classes(), input_ids=tokens(1), attention_mask=torch.ones(SAMPLES, 8, dtype=torch.long))


KINDS = {
    "gpt2": Kind(gpt2, of_tokens, lambda: (tokens(1), tokens(2)), cache=True, tied=True),
    "gpt2 with its own loss": Kind(
        gpt2, own, lambda: Named(tokens(1), input_ids=tokens(1), labels=tokens(1)), cache=True, tied=True
    ),
    "llama": Kind(llama, of_tokens, lambda: (tokens(1), tokens(2)), cache=True),
    "bert": Kind(still_bert, of_classes, masked),
    "bert with its own loss": Kind(
        still_bert, own, lambda: Named(classes(), input_ids=tokens(1), labels=classes())
    ),
    "vit": Kind(vit, of_classes, lambda: (images(), classes())),
}  # fmt: skip


def summed_logits(outputs: Any, labels: Tensor) -> float:
    assert outputs.logits is outputs["logits"] is outputs.to_tuple()[0 if outputs.loss is None else 1]
    return float(outputs.logits.double().sum())


def prepared(kind: Kind, notes: list[str]) -> PreparedJob:
    data = kind.data()
    job = potluck.Job(
        model=kind.make, loss=kind.loss, optimizer=MOMENTUM, data=data, eval_data=data, batch_size=4, rounds=2,
        metrics={"sum": summed_logits}, kernels="torch",
    )  # fmt: skip
    return prepare_job(job, notes.append)


def batches(job: potluck.Job) -> list[MicroBatch]:
    loader = evaluation_loader(job)
    try:
        made = [loader.get(i) for i in range(loader.order.rounds)]
    finally:
        loader.close()
    return [(batch.feeds, batch.weights) for batch in made]


def train_eagerly(model: nn.Module, kind: Kind, rounds: list[list[MicroBatch]]) -> Mapping[str, Tensor]:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9, foreach=False)
    for round in rounds:
        total = float(sum(w.sum() for _, w in round))
        for feeds, weights in round:
            loss = kind.loss(call_model(model, feeds), feeds["label"])
            loss.backward(torch.full_like(loss, float(weights.sum()) / total))
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("name", KINDS)
def test_it_trains_and_is_judged_as_in_a_plain_loop(name):
    kind, notes = KINDS[name], list[str]()
    ready = prepared(kind, notes)
    left_out = "evaluation leaves out what is no tensor: past_key_values (DynamicCache)"
    assert notes == ([left_out] if kind.cache else [])
    rounds = [batches(ready.job)] * 2
    torch.manual_seed(0)
    model = kind.make()
    check_judging(ready, kind, model.eval())
    expected = train_eagerly(model, kind, rounds)
    run, built = uncut(ready.built.programs, ready.built.state), ready.built
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 1 if kind.tied else 3))
    for number, round in enumerate(rounds):
        run.round(number, round)
        cut.round(number, round)
    found = uncut_tensors(run)
    aliases = built.programs.aliases
    unequal = [n for n, t in expected.items() if not torch.equal(found[aliases.get(n, n)], t)]
    assert unequal == []
    assert differing(cut.tensors(), found) == []


def check_judging(ready: PreparedJob, kind: Kind, model: nn.Module) -> None:
    """Its evaluation gives what the module does, in an object of the module's class."""
    parts = batches(ready.job)
    feeds = {n: torch.cat([f[n] for f, _ in parts]) for n in parts[0][0]}
    with torch.no_grad():
        expected: Any = call_model(model, feeds)
    cut = Pipeline(ready.built.programs, ready.built.state, even_cuts(ready.built.programs.eval.block_count, 2))
    given = ready.built.outputs.make(cut.evaluate(feeds))
    assert (type(given), [*given]) == (type(expected), [*expected])
    assert torch.equal(given.logits, expected.logits)
    evaluation = WholeEvaluation(ready)
    try:
        loss, metrics, count = evaluation.run(ready.built.state)
    finally:
        evaluation.close()
    assert count == SAMPLES
    assert loss == pytest.approx(float(kind.loss(expected, feeds["label"])), rel=1e-5)
    assert metrics["sum"] == pytest.approx(summed_logits(expected, feeds["label"]), rel=1e-4)


def test_with_its_usual_dropout_a_cut_model_trains_with_the_bits_of_the_uncut_one():
    ready = prepared(Kind(bert, of_classes, masked), [])
    built, round = ready.built, batches(ready.job)
    cut = Pipeline(built.programs, built.state, even_cuts(built.programs.train.block_count, 3))
    run = uncut(built.programs, built.state)
    cut.round(0, round)
    run.round(0, round)
    assert differing(cut.tensors(), uncut_tensors(run)) == []


def test_a_loss_of_tensors_is_told_to_take_the_logits():
    with pytest.raises(potluck.errors.InputError, match=r"F\.cross_entropy\(outputs\.logits\.flatten\(0, 1\), labels"):
        prepared(dataclasses.replace(KINDS["gpt2"], loss=F.cross_entropy), [])

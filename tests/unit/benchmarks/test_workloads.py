"""The workloads: the same every time, and their lists of layers compute what the models do."""

from __future__ import annotations

import pytest
import torch

from benchmarks.peers.layers import even_span, layers
from benchmarks.workloads import BATCH, LEARNING_RATE, MOMENTUM, WORKLOADS, plain, samples, sgd, workload
from potluck.errors import InputError
from potluck.job.optimizers import SGD

MILLIONS = {"mobilenet_v2": 2.24, "resnet50": 23.5, "efficientnet_b1": 6.5, "bert_small": 28.8, "gpt_10m": 11.1}


@pytest.mark.hf
@pytest.mark.parametrize("name", WORKLOADS)
def test_layers_one_after_another_are_the_model(name):
    case = plain(name)
    model = case.make_model()
    inputs, labels = samples(case, 2)
    out: torch.Tensor = inputs
    with torch.no_grad():
        for layer in layers(name, model):
            out = layer(out)
        assert torch.equal(out, model(inputs))
        assert case.loss(out, labels).isfinite()
    covered = {id(p) for layer in layers(name, model) for p in layer.parameters()}
    assert covered == {id(p) for p in model.parameters()}
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(MILLIONS[name], rel=0.01)


@pytest.mark.hf
def test_model_and_samples_are_the_same_at_every_call():
    case = plain("mobilenet_v2")
    one, two = case.make_model().state_dict(), case.make_model().state_dict()
    assert all(torch.equal(one[n], two[n]) for n in one)
    for a, b in zip(samples(case, 12), samples(case, 12), strict=True):
        assert torch.equal(a, b)
        assert len(a) == 24


def test_job_and_plain_optimizer_agree():
    job = workload("bert_small", 3).job
    assert (job.batch_size, job.micro_batch, job.rounds) == (BATCH, 8, 3)
    assert job.optimizer == SGD(lr=LEARNING_RATE, momentum=MOMENTUM)
    defaults = sgd(torch.nn.Linear(1, 1)).defaults
    assert (defaults["lr"], defaults["momentum"], defaults["weight_decay"]) == (LEARNING_RATE, MOMENTUM, 0)


def test_what_does_not_divide_or_exist_is_refused():
    with pytest.raises(InputError, match="does not divide"):
        workload("mobilenet_v2", 1, batch=120, micro_batch=7)
    with pytest.raises(InputError, match="mobilenet_v2"):
        workload("alexnet", 1)


def test_even_spans_cover_every_layer_once():
    for count in range(1, 20):
        for stages in range(1, count + 1):
            spans = [even_span(count, stage, stages) for stage in range(stages)]
            assert [i for span in spans for i in span] == list(range(count))
            assert max(map(len, spans)) - min(map(len, spans)) <= 1
    with pytest.raises(ValueError, match="at most 3 ranks"):
        even_span(3, 0, 4)

"""The demo's job can be trained, and takes as many rounds as its schedule says."""

from __future__ import annotations

from typing import Any, cast

import torch

from potluck.commands.demo_job import BATCH_SIZE, EPOCHS, accuracy, job, make_model
from potluck.coordinator.samples.loading import training_order
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.job.learning_rates import multiplier


def test_accuracy_is_the_fraction_read_correctly() -> None:
    outputs = torch.eye(10)[torch.tensor([3, 1, 4, 1])]
    assert accuracy(outputs, torch.tensor([3, 1, 5, 1])) == 0.75


def test_the_model_tells_ten_digits_apart_and_can_be_cut() -> None:
    assert make_model()(torch.zeros(2, *cast(Any, job.data)[0].shape[1:])).shape == (2, 10)
    found = prepare_job(job).facts
    assert len(found.blocks) >= 5
    assert not any(block.coupled for block in found.blocks)


def test_the_learning_rate_has_come_down_when_the_last_round_is_trained() -> None:
    rounds = training_order(job).rounds
    assert rounds == EPOCHS * -(-job.sample_count // BATCH_SIZE)
    assert multiplier(job.schedule, rounds - 1) < 0.01
    assert max(multiplier(job.schedule, round) for round in range(rounds)) > 0.99


def test_nobody_is_judged_by_digits_that_were_trained() -> None:
    trained = {tuple(image.flatten().tolist()) for image in cast(Any, job.data)[0]}
    judged = [tuple(image.flatten().tolist()) for image in cast(Any, job.eval_data)[0]]
    assert sum(image in trained for image in judged) < 0.01 * len(judged)

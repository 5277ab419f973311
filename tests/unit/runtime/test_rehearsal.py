"""A rehearsal tells what training takes; running blocks together corrects what they took apart."""

from __future__ import annotations

import itertools
import sys
import time

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import potluck
from potluck.model.carve import Carver
from potluck.runtime.bench import Rig
from potluck.runtime.loading import first_samples
from potluck.runtime.measure_blocks import measure_blocks
from potluck.runtime.prepare import PreparedJob, prepare_job
from potluck.runtime.reconcile import reconcile
from potluck.runtime.rehearsal import rehearse

ROWS, WIDTH = 64, 1024


@pytest.fixture(scope="module")
def prepared() -> PreparedJob:
    torch.set_num_threads(1)
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return prepare_job(
        potluck.Job(
            model=lambda: nn.Sequential(*layers), loss=nn.functional.mse_loss, optimizer=potluck.Adam(lr=0.01),
            data=(x, x), batch_size=ROWS, micro_batch_size=ROWS, rounds=1,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def rig(prepared: PreparedJob) -> Rig:
    programs = prepared.built.programs
    carvers = (Carver(programs.train), Carver(programs.eval))
    samples = first_samples(prepared.job, ROWS).feeds
    return Rig(programs, carvers, prepared.optimizer, samples, torch.device("cpu"), 1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_rehearsal_grows_by_weights_gradients_and_optimizer_at_least(prepared: PreparedJob, rig: Rig) -> None:
    whole = (0, len(prepared.facts.blocks))
    weights = sum(b.weight_bytes for b in prepared.facts.blocks)
    full = rehearse(rig, whole, ROWS)
    assert full is not None
    # Weight, gradient and Adam's two; some of it may be reused.
    assert 3.5 * weights < full.grown_bytes < 3.5 * weights + 300e6
    assert full.micro_batches == 12


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_slow_device_rehearses_briefly_or_not_at_all(
    prepared: PreparedJob, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (0, len(prepared.facts.blocks))
    ticks = itertools.count(step=1.0)  # a forward pass lasts a second
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    brief = rehearse(rig, whole, ROWS, most_s=35.0)  # of 36 that a full one takes
    assert brief is not None
    assert brief.micro_batches == 2
    assert rehearse(rig, whole, ROWS, most_s=5.0) is None


def test_blocks_that_were_too_slow_apart_are_scaled_to_what_they_take_together(prepared: PreparedJob, rig: Rig) -> None:
    blocks, call_s = measure_blocks(rig, (ROWS,), 5.0, [1.0] * len(prepared.facts.blocks))
    slow = tuple(
        replace(b, timings=tuple(replace(t, forward_s=10 * t.forward_s, backward_s=t.backward_s) for t in b.timings))
        for b in blocks
    )
    found = reconcile(rig, slow, call_s, [(0, len(blocks))], ROWS, 60.0)
    for before, after in zip(slow, found, strict=True):
        assert after.timings[0].forward_s == pytest.approx(0.7 * before.timings[0].forward_s)  # never by more than that
        assert after.timings[0].backward_s >= 0.7 * before.timings[0].backward_s


def test_without_time_nothing_is_scaled(prepared: PreparedJob, rig: Rig) -> None:
    blocks, call_s = measure_blocks(rig, (ROWS,), 2.0, [1.0] * len(prepared.facts.blocks))
    assert reconcile(rig, blocks, call_s, [(0, len(blocks))], ROWS, 0.0) == blocks

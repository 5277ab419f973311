"""A rehearsal tells what training takes; running blocks together corrects what they took apart."""

from __future__ import annotations

import sys

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import potluck
from potluck.compute.runner import StageRunner
from potluck.coordinator.samples.loading import first_samples
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.device.measure import memory_trial as rehearsal
from potluck.device.measure.bench import Rig
from potluck.device.measure.block_times import measure_blocks
from potluck.device.measure.memory_trial import BRIEF, FULL, MemoryTrials, TooSlow, extent_for
from potluck.device.measure.reconcile import Reconciled, reconcile
from potluck.program.carve import Carver

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
    rehearsals = MemoryTrials(rig, ROWS, most_s=600.0)
    grown = rehearsals.grown_bytes(whole)
    assert grown is not None
    assert 3.5 * weights < grown < 3.5 * weights + 300e6  # weight, gradient and Adam's two; some of it may be reused
    assert rehearsals.extent == FULL


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_brief_rehearsal_too_has_activations_beside_the_state_of_the_optimizer(
    prepared: PreparedJob, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, seen = (0, len(prepared.facts.blocks)), []
    monkeypatch.setattr(rehearsal, "extent_for", lambda step_s, most_s: BRIEF)
    forward = MemoryTrials._forward

    def watched(self: MemoryTrials, runner: StageRunner, round: int, j: int) -> None:
        forward(self, runner, round, j)
        seen.append((round, j))

    monkeypatch.setattr(MemoryTrials, "_forward", watched)
    assert MemoryTrials(rig, ROWS, most_s=600.0).grown_bytes(whole) is not None
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_slow_device_rehearses_briefly_or_not_at_all() -> None:
    assert extent_for(1.0, most_s=FULL.steps) == FULL
    assert extent_for(1.1, most_s=FULL.steps) == BRIEF
    with pytest.raises(TooSlow):
        extent_for(1.1, most_s=BRIEF.steps)


def test_blocks_that_were_too_slow_apart_are_scaled_to_what_they_take_together(prepared: PreparedJob, rig: Rig) -> None:
    blocks, call_s = measure_blocks(rig, (ROWS,), 5.0, [1.0] * len(prepared.facts.blocks))
    slow = tuple(
        replace(b, timings=tuple(replace(t, forward_s=10 * t.forward_s, backward_s=t.backward_s) for t in b.timings))
        for b in blocks
    )
    found = reconcile(rig, slow, call_s, [(0, len(blocks))], ROWS, 60.0).blocks
    for before, after in zip(slow, found, strict=True):
        assert after.timings[0].forward_s == pytest.approx(0.7 * before.timings[0].forward_s)  # never by more than that
        assert after.timings[0].backward_s >= 0.7 * before.timings[0].backward_s


def test_without_time_nothing_is_scaled(prepared: PreparedJob, rig: Rig) -> None:
    blocks, call_s = measure_blocks(rig, (ROWS,), 2.0, [1.0] * len(prepared.facts.blocks))
    assert reconcile(rig, blocks, call_s, [(0, len(blocks))], ROWS, 0.0) == Reconciled(blocks, call_s)

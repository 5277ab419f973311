"""Devices vanish while rounds overlap: what is under way is committed everywhere, or trained again to the same bits."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.metrics.records import RECORDS, PlanAdopted, read
from potluck.types import Plan
from tests.models.zoo_jobs import cut, grouped
from tests.process.test_survival import At, assert_nothing_lost, incidents, job, kill, state, survived

torch.set_num_threads(1)


def late_job(name: str = "mlp", *, hard: bool = True) -> PreparedJob:
    """Gradients one step late."""
    return prepare_job(replace(job(name, hard=hard).job, staleness=1))


def steady(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, schedule="steady")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The hard job (AdamW, clipping, dropout, a schedule) with nobody lost."""
    prepared, folder = late_job(), tmp_path_factory.mktemp("undisturbed") / "run"
    survived(folder, steady(cut(prepared.facts, 3)), prepared)
    return state(folder)


def assert_same_bits(run_dir: Path, expected: dict[str, torch.Tensor]) -> None:
    found = state(run_dir)
    assert any(name.endswith("/previous") for name in expected)  # the weights from before the last step, too
    assert [n for n in expected if not torch.equal(found[n], expected[n])] == []


LATER = pytest.mark.full


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param([(3, ("d1",))], id="one"),
        pytest.param([(3, ("d0",))], id="the first stage", marks=LATER),
        pytest.param([(3, ("d2",))], id="the last stage", marks=LATER),
        pytest.param([(4, ("d1", "d2"))], id="two neighbours", marks=LATER),
        pytest.param([(2, ("d0",)), (5, ("d2",))], id="until one is left", marks=LATER),
    ],
)
def test_the_bits_are_those_of_a_run_in_which_nobody_was_lost(
    deaths: list[tuple[int, tuple[str, ...]]], undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    prepared, run_dir = late_job(), tmp_path / "run"
    killed = [At(round, kill(*names)) for round, names in deaths]
    result = survived(run_dir, steady(cut(prepared.facts, 3)), prepared, *killed)
    assert_nothing_lost(run_dir, result)
    assert_same_bits(run_dir, undisturbed)
    assert {i.kind for i in incidents(run_dir)} == {"lost"}
    plans = [r.plan for r in read(run_dir / RECORDS) if isinstance(r, PlanAdopted)]
    assert {plan.schedule for plan in plans} == {"steady"}


@pytest.mark.full
def test_without_copies_everybody_goes_back_to_the_coordinators(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    prepared, run_dir = late_job(), tmp_path / "run"
    result = survived(run_dir, steady(cut(prepared.facts, 3)), prepared, At(3, kill("d1")), first_copy_s=1e9)
    assert_nothing_lost(run_dir, result)
    assert_same_bits(run_dir, undisturbed)
    assert incidents(run_dir)[0].replayed_rounds >= 4


@pytest.mark.full
def test_a_device_that_freezes_is_done_without(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    prepared, run_dir = late_job(), tmp_path / "run"
    result = survived(run_dir, steady(cut(prepared.facts, 3)), prepared, At(3, kill("d1", how=signal.SIGSTOP)))
    assert_nothing_lost(run_dir, result)
    assert_same_bits(run_dir, undisturbed)


def test_a_member_of_a_group_vanishes_and_nothing_committed_is_trained_again(tmp_path: Path) -> None:
    prepared, run_dir = late_job(hard=False), tmp_path / "run"
    plan = steady(grouped(prepared.facts, "samples", (2, 2), first=True))
    result = survived(run_dir, plan, prepared, At(3, kill("d0")))
    assert_nothing_lost(run_dir, result)
    [incident] = incidents(run_dir)
    assert incident.replayed_rounds == 0
    survived(tmp_path / "whole", plan, late_job(hard=False))
    whole, found = state(tmp_path / "whole"), state(run_dir)
    for name, tensor in whole.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-6), name

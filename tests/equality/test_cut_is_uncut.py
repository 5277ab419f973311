"""Through real agents, a cut run has the bits of the uncut one; where sums change order, float64 says how little."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional as F

import potluck
from potluck.commands.verifying import TOLERANCE, compare
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.job.optimizers import Optimizer
from potluck.plan.exactness import why_not_uncut
from potluck.types import STEADY_SCHEDULE, Fleet
from tests.models.zoo import all_cases
from tests.models.zoo_jobs import case_job, cut, devices, grouped

QUICK = ("residual_cnn", "unet", "padded_encoder", "dropout_net")
CASES = {case.name: case for case in all_cases()}
OPTIONS = Options(timeout_s=60.0)


def names(quick: tuple[str, ...]) -> list[object]:
    """Every model; those that are not quick only in the full tests."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.full) for n in CASES]


def fleet_on(carrier: str) -> LiveFleet:
    torch.set_num_threads(1)
    return LiveFleet(Fleet(devices=devices(4)), Options(carrier=carrier, timeout_s=60.0))


@pytest.fixture(scope="module")
def live() -> Iterator[LiveFleet]:
    with fleet_on("zmq") as fleet:
        yield fleet


@pytest.mark.full
def test_the_other_carrier_gives_the_same_bits_too() -> None:
    with fleet_on("gloo") as gloo:
        for name in ("residual_cnn", "unet", "dropout_net"):
            prepared = prepare_job(case_job(CASES[name], 3, hard=True))
            assert compare(gloo, prepared, cut(prepared.facts, 4, deep=True), OPTIONS).unequal == ()


@pytest.mark.parametrize("name", ["residual_cnn", "dropout_net"])
def test_recomputing_stages_give_the_same_bits(live: LiveFleet, name: str) -> None:
    prepared = prepare_job(case_job(CASES[name], 3, hard=True))
    plan = cut(prepared.facts, 3, deep=True)
    again = replace(plan, stages=tuple(replace(s, recompute=i != 1) for i, s in enumerate(plan.stages)))
    found = compare(live, prepared, again, OPTIONS)
    assert found.unequal == ()
    assert found.losses_equal


@pytest.mark.parametrize("name", names(QUICK))
def test_stages_and_turns_give_the_same_bits(live: LiveFleet, name: str) -> None:
    prepared = prepare_job(case_job(CASES[name], 3, hard=True))
    for plan in (cut(prepared.facts, 4, deep=True), grouped(prepared.facts, "turns", (3, 1), first=True)):
        bits = not why_not_uncut(plan, prepared.facts)
        found = compare(live, prepared, plan, OPTIONS, lanes=bits)
        if bits:
            assert found.unequal == ()
            assert found.losses_equal
        else:  # tied across the cut: the first round's loss has the same bits, the rest is float64's business below
            assert found.relative < 1e-3


@pytest.mark.parametrize("name", names(("residual_cnn", "dropout_net")))
def test_overlapping_rounds_have_the_bits_of_gradients_that_are_one_step_late(live: LiveFleet, name: str) -> None:
    job = dataclasses.replace(case_job(CASES[name], 6, hard=True), staleness=1)
    prepared = prepare_job(job)
    for plan in (cut(prepared.facts, 4, deep=True), grouped(prepared.facts, "turns", (3, 1), first=True)):
        steady = replace(plan, schedule="steady")
        bits = not why_not_uncut(steady, prepared.facts)
        found = compare(live, prepared, steady, OPTIONS, lanes=bits)
        if bits:
            assert found.unequal == ()
            assert found.losses_equal
        else:
            assert found.relative < 1e-3


def test_overlapping_rounds_shared_by_samples_differ_only_by_rounding(live: LiveFleet) -> None:
    case = CASES["padded_encoder"]
    job = dataclasses.replace(case_job(case, 8, dtype=torch.float64, micro_batch=8), staleness=1)
    prepared = prepare_job(job)
    plan = replace(grouped(prepared.facts, "samples", (5, 3), 8, first=True), schedule="steady")
    found = compare(live, prepared, plan, OPTIONS, lanes=False)
    assert found.relative <= TOLERANCE
    now = compare(live, prepared, replace(plan, schedule="1f1b"), OPTIONS, lanes=False)
    assert now.relative <= TOLERANCE  # of the reference without delay


class Dense(nn.Module):
    """A value used twice in every later layer, and a parameter never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList([nn.Linear(12, 12) for _ in range(5)])
        self.out, self.unused = nn.Linear(12, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = self.layers[0](x)
        h = torch.tanh(memory)
        for layer in list(self.layers)[1:]:
            h = torch.tanh(layer(h) + memory) * memory + h
        result: torch.Tensor = self.out(h)
        return result


def dense_job(optimizer: Optimizer, model: Callable[[], nn.Module] = Dense) -> potluck.Job:
    generator = torch.Generator().manual_seed(0)
    return potluck.Job(
        model=model,
        loss=F.cross_entropy,
        optimizer=optimizer,
        data=(torch.randn(40, 12, generator=generator), torch.arange(40) % 3),
        batch_size=16,
        micro_batch_size=4,
        rounds=4,
        checkpoint_every=4,
    )


def test_gradients_of_a_value_used_in_several_later_stages_add_up_in_autograd_s_order(live: LiveFleet) -> None:
    prepared = prepare_job(dense_job(potluck.SGD(lr=0.1, momentum=0.9)))
    for stages in (3, 4):
        plan = cut(prepared.facts, stages)
        assert compare(live, prepared, plan, OPTIONS).unequal == ()
    assert compare(live, prepared, replace(plan, schedule="steady"), OPTIONS).unequal == ()


def layered() -> nn.Module:
    torch.manual_seed(2)
    layers = [layer for _ in range(4) for layer in (nn.Linear(12, 12), nn.LayerNorm(12), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(12, 3))


@pytest.mark.parametrize(
    "optimizer",
    [potluck.NAdam(lr=0.01, weight_decay=0.1), potluck.Muon(lr=0.02, feedback=0.5, rest=potluck.AdamW(lr=0.01))],
    ids=["nadam", "muon"],
)
def test_optimizers_for_late_gradients_give_the_same_bits_in_lock_step_and_one_step_late(
    live: LiveFleet, optimizer: Optimizer
) -> None:
    prepared = prepare_job(dense_job(optimizer, layered))
    plan = cut(prepared.facts, 3)
    for schedule in (plan.schedule, STEADY_SCHEDULE):
        found = compare(live, prepared, replace(plan, schedule=schedule), OPTIONS)
        assert found.unequal == ()
        assert found.losses_equal


@pytest.mark.parametrize("name", names(("padded_encoder",)))
def test_shared_by_samples_differs_only_by_rounding(live: LiveFleet, name: str) -> None:
    case = CASES[name]
    if case.batch_coupled:
        pytest.skip("samples meet in BatchNorm: such a stage is not shared by samples")
    prepared = prepare_job(case_job(case, 8, dtype=torch.float64, micro_batch=8))
    plan = grouped(prepared.facts, "samples", (5, 3), 8, first=True)
    assert compare(live, prepared, plan, OPTIONS, lanes=False).relative <= TOLERANCE

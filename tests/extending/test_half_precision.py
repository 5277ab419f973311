"""A codec of somebody else trains for real: to the bits of the model that rounds where the plan cuts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional as F

import potluck
from potluck.commands.verifying import compare, run_uncut, verify_job
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.errors import PotluckError
from potluck.settings.extensions import VARIABLE
from potluck.types import Fleet, Plan
from tests.extending import half_precision
from tests.extending.counted_messages import FOLDER, counted_bytes
from tests.models.zoo_jobs import cut, devices, grouped

EXTENSIONS = (half_precision.__name__, "tests.extending.counted_messages")
OPTIONS = Options(timeout_s=60.0)
WIDE = 64


class Skipping(nn.Module):
    """What the first layer makes is used in every later one, so its gradient is handed from stage to stage."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.out = nn.Linear(12, WIDE), nn.Linear(WIDE, 3)
        self.layers = nn.ModuleList([nn.Linear(WIDE, WIDE) for _ in range(4)])
        self.norm = nn.BatchNorm1d(WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = torch.tanh(self.first(x))
        h = self.norm(memory)
        for layer in self.layers:
            h = torch.tanh(layer(h) + memory) + h
        result: torch.Tensor = self.out(h)
        return result


def a_job() -> potluck.Job:
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    return potluck.Job(
        model=Skipping, loss=F.cross_entropy, optimizer=potluck.SGD(lr=0.1, momentum=0.9), clip_norm=0.5,
        data=(x, torch.arange(64) % 3), batch_size=16, micro_batch_size=4, rounds=4, checkpoint_every=4,
    )  # fmt: skip


def by_codec(plan: Plan, *stages: int) -> Plan:
    """The plan, with these stages sending in half precision."""
    return replace(
        plan, stages=tuple(replace(s, codec="half") if i in stages else s for i, s in enumerate(plan.stages))
    )


def trained(prepared: PreparedJob, plan: Plan) -> dict[str, torch.Tensor]:
    run, _ = run_uncut(prepared, plan, lanes=True)
    return run.stage.state().parameters


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counted")


@pytest.fixture(scope="module")
def live(counted: Path) -> Iterator[LiveFleet]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, ",".join(EXTENSIONS))
        patch.setenv(FOLDER, str(counted))
        with LiveFleet(Fleet(devices=devices(3)), OPTIONS) as fleet:
            yield fleet


@pytest.fixture(scope="module")
def prepared() -> PreparedJob:
    return prepare_job(a_job())


@pytest.mark.parametrize("stages", [(0,), (0, 1)])
def test_the_run_has_the_bits_of_the_model_that_rounds_where_it_is_cut(
    live: LiveFleet, prepared: PreparedJob, stages: tuple[int, ...]
) -> None:
    raw = cut(prepared.facts, 3)
    assert compare(live, prepared, by_codec(raw, *stages), OPTIONS).none
    rounded, plain = trained(prepared, by_codec(raw, *stages)), trained(prepared, raw)
    assert not any(torch.equal(tensor, plain[name]) for name, tensor in rounded.items())


def test_a_group_by_turns_rounds_as_one_device_does(live: LiveFleet, prepared: PreparedJob) -> None:
    plan = by_codec(grouped(prepared.facts, "turns", (3, 1), first=True), 0)
    assert compare(live, prepared, plan, OPTIONS).none


def test_half_the_bytes_cross(live: LiveFleet, counted: Path, prepared: PreparedJob) -> None:
    raw = cut(prepared.facts, 3)
    counted_bytes(counted)
    crossed = []
    for plan in (raw, by_codec(raw, 0, 1)):
        assert compare(live, prepared, plan, OPTIONS).none
        crossed.append(counted_bytes(counted))
    assert crossed[0] > 4 * 4 * 4 * WIDE * 4  # rounds, micro-batches, rows
    assert crossed[1] == pytest.approx(crossed[0] / 2, rel=0.05)  # headers stay


def test_verify_says_which_codec_rounds(monkeypatch: pytest.MonkeyPatch, prepared: PreparedJob) -> None:
    monkeypatch.setenv(VARIABLE, half_precision.__name__)
    found = verify_job(a_job(), by_codec(cut(prepared.facts, 2), 0), Fleet(devices=devices(2)), 2, OPTIONS)
    assert found.rung == 1
    assert "what leaves stage 0, and the gradients that come back, are rounded by codec 'half'" in found.why


def test_verify_cannot_tell_where_sums_change_order_too(prepared: PreparedJob) -> None:
    plan = by_codec(grouped(prepared.facts, "samples", (2, 2), first=False), 0)
    with pytest.raises(PotluckError, match=r"cannot tell: stage 1 is shared by samples.*rounded by codec 'half'"):
        verify_job(a_job(), plan, Fleet(devices=devices(3)), 2, OPTIONS)

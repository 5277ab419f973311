"""What `verify` says of a plan that gives other bits: the same in float64, or that it cannot tell."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import potluck
from potluck.commands.trying import shorten
from potluck.commands.verifying import Verification, prepare_in_float64, verify_job
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.errors import PotluckError
from potluck.types import DeviceSpec, Fleet, Member, Plan, Stage
from tests.models.zoo_jobs import devices


class Single(nn.Linear):
    """Computes in float32 whatever it is given."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input.float(), self.weight.float(), self.bias.float()).to(input.dtype)


class Only32(nn.Linear):
    """Cannot be given anything else than float32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) @ torch.eye(3)


def job(last: Any = nn.Linear, **changes: Any) -> potluck.Job:
    def make() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), last(16, 3))

    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    base = potluck.Job(
        model=make, loss=F.cross_entropy, optimizer=potluck.SGD(lr=0.2), data=(x, (x[:, 0] > 0).long()), batch_size=16,
        micro_batch_size=8, epochs=1,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def verify(what: potluck.Job) -> Verification:
    blocks = len(prepare_job(what).facts.blocks)
    members = tuple(Member(device=d.name, share=4) for d in devices(2))
    plan = Plan(
        micro_batch_size=8, micro_batches=2, stages=(Stage(blocks=(0, blocks), group=members, sharing="samples"),)
    )
    return verify_job(what, plan, Fleet(devices=devices(2)), 4, Options(timeout_s=60.0))


def test_other_bits_are_the_same_numbers_in_float64() -> None:
    found = verify(job())
    assert found.rung == 2
    assert "shared by samples" in found.why


@pytest.mark.parametrize(
    ("last", "why"), [(Only32, "the model fails in float64: .*dtype"), (Single, "computes in float32 whatever")]
)
def test_where_float64_is_impossible_it_says_so_in_one_line(last: Any, why: str) -> None:
    with pytest.raises(
        PotluckError, match=f"cannot tell: stage 0 is shared by samples.*{why}.*verify with a plan"
    ) as e:
        verify(job(last))
    assert "\n" not in str(e.value)


def test_a_device_without_float64_is_named() -> None:
    fleet = Fleet(devices=(DeviceSpec(name="laptop", kind="mps"),))
    with pytest.raises(PotluckError, match=r"laptop \(mps\) has no float64"):
        prepare_in_float64(job(), fleet, "it is shared")


def test_a_job_that_reduces_its_outputs_can_be_verified() -> None:
    x, y = job().data[0], job().data[1]
    reduced = job(eval_data=(x, y), reduce=lambda out, y: out.argmax(1) == y, metrics={"a": lambda hits, y: 0.0})
    assert shorten(reduced, 3).rounds == 3

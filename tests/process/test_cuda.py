"""Agents on a real GPU: the numbers of the CPU within rung 2's tolerance, and three agents sharing one GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from potluck import SGD, Job
from potluck.commands.training_job import train
from potluck.commands.verifying import TOLERANCE, compare
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.paramserver.policy_choice import choose
from potluck.types import DeviceSpec, Fleet
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import case_job, cut, grouped

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; torch sees none here")

OPTIONS = Options(timeout_s=120.0)
MODELS = ("residual_cnn", "decoder", "dropout_net", "padded_encoder")


def measure(kinds: tuple[str, ...], dtype: torch.dtype) -> dict[str, float]:
    """Difference from the uncut CPU run, per model, of a pipeline over three devices of these kinds."""
    fleet = Fleet(devices=tuple(DeviceSpec(name=f"d{i}", kind=k) for i, k in enumerate(kinds)))  # type: ignore[arg-type]
    found = {}
    with LiveFleet(fleet, OPTIONS) as live:
        for case in core_cases():
            if case.name in MODELS:
                prepared = prepare_job(case_job(case, 8, dtype=dtype, hard=case.name == "decoder"))
                found[case.name] = compare(live, prepared, cut(prepared.facts, 3), OPTIONS, lanes=False).relative
                if not any(b.coupled for b in prepared.facts.blocks):
                    plan = grouped(prepared.facts, "turns", (3, 1), first=True)
                    key = f"{case.name}, turns"
                    found[key] = compare(live, prepared, plan, OPTIONS, lanes=False).relative
    return found


def test_three_agents_sharing_a_gpu_give_the_cpu_s_numbers() -> None:
    found = measure(("cuda", "cuda", "cuda"), torch.float64)
    print("cuda float64", {k: f"{v:.1e}" for k, v in found.items()})
    assert max(found.values()) <= TOLERANCE


def test_a_gpu_between_two_cpus() -> None:
    found = measure(("cpu", "cuda", "cpu"), torch.float64)
    print("mixed float64", {k: f"{v:.1e}" for k, v in found.items()})
    assert max(found.values()) <= TOLERANCE


def test_float32_stays_close() -> None:
    """With BatchNorm, one value at a kink that falls to the other side grows to a tenth in eight rounds: not judged."""
    found = measure(("cuda", "cuda", "cuda"), torch.float32)
    print("cuda float32", {k: f"{v:.1e}" for k, v in found.items()})
    assert max(v for k, v in found.items() if k != "residual_cnn") <= 1e-3
    assert found["residual_cnn"] <= 1.0


def test_a_gpu_and_a_cpu_train_around_a_parameter_server(tmp_path: Path) -> None:
    fleet = Fleet(devices=(DeviceSpec(name="gpu", kind="cuda"), DeviceSpec(name="cpu")))
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 8, generator=random)
    job = Job(
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)),
        loss=nn.functional.cross_entropy, optimizer=SGD(lr=0.1, momentum=0.9),
        data=(inputs, (inputs.sum(1) > 0).long()), batch_size=16, epochs=40,
    )  # fmt: skip
    result = train(job, fleet, replace(OPTIONS, run_dir=tmp_path / "run", sync=choose("ours")))
    assert (result.reason, result.samples_lost, result.samples_doubled) == ("finished", 0, 0)
    weights = load_file(result.model_path)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    model.load_state_dict(weights)
    right = (model.eval()(inputs).argmax(1) == (inputs.sum(1) > 0)).float().mean()
    assert right > 0.9

"""Training over real agents: resuming, leaving, failing; the numbers stay those of one machine."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import potluck
import potluck.errors
from potluck.commands.choosing import micro_batch_choices
from potluck.commands.training_job import train
from potluck.commands.trying import try_plans
from potluck.control.audit import audit
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.training import run_on
from potluck.errors import PotluckError
from potluck.job.job import Job
from potluck.metrics.folds import rounds
from potluck.metrics.records import RECORDS, EvaluationRecord, IncidentRecord, read
from potluck.plan.events.refine import corrected
from potluck.tensors.checkpoint import load, newest
from potluck.types import Fleet, Member, Plan, Stage
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import CaseSamples, case_job, cut, devices

PATIENT = 60.0


def job_of(name: str, rounds: int, **changes: Any) -> Job:
    case = next(c for c in core_cases() if c.name == name)
    return dataclasses.replace(case_job(case, rounds), **changes)


@pytest.fixture(scope="module")
def live() -> Any:
    torch.set_num_threads(1)
    with LiveFleet(Fleet(devices=devices(3)), Options(timeout_s=PATIENT)) as fleet:
        yield fleet


def final_state(run_dir: Path) -> dict[str, torch.Tensor]:
    found = newest(run_dir)
    assert found is not None
    _, weights, optimizer = load(found.path)
    return {**weights, **optimizer}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [n for n in a if not torch.equal(a[n], b[n])] == []


def test_a_stopped_run_resumed_on_another_plan_ends_with_the_same_bits(live: LiveFleet, tmp_path: Path) -> None:
    prepared = prepare_job(job_of("residual_cnn", 6))
    plan = cut(prepared.facts, 3)
    run_on(live, prepared, plan, Options(run_dir=tmp_path / "whole", timeout_s=PATIENT))

    asked = itertools.count()
    stop_at_third = Options(run_dir=tmp_path / "parts", timeout_s=PATIENT, should_stop=lambda: next(asked) == 2)
    stopped = run_on(live, prepare_job(job_of("residual_cnn", 6)), plan, stop_at_third)
    assert (stopped.reason, stopped.rounds) == ("stopped", 3)
    resumed = run_on(
        live,
        prepare_job(job_of("residual_cnn", 6)),
        cut(prepared.facts, 2, deep=True),
        Options(run_dir=tmp_path / "parts", resume=True, timeout_s=PATIENT),
    )
    assert (resumed.reason, resumed.rounds) == ("finished", 6)
    assert_same(final_state(tmp_path / "whole"), final_state(tmp_path / "parts"))
    found = audit(tmp_path / "parts")
    assert found.exact
    assert not found.problems


def test_plans_are_tried_and_what_they_learn_is_thrown_away(live: LiveFleet, tmp_path: Path) -> None:
    prepared = prepare_job(job_of("mlp", 3))
    profile = profile_fleet(live, prepared, MeasuringTime(seconds=1.0, network_seconds=0.3))
    said: list[str] = []
    options = Options(tries=2, plan_s=0.5, timeout_s=PATIENT, progress=said.append)
    attempts, learned = try_plans(live, prepared, profile, micro_batch_choices(prepared), options)
    assert [a.round_s for a in attempts] == sorted(a.round_s for a in attempts)
    assert len(said) == 2 * len(attempts)
    assert said[0].startswith("trying plan 1 for 12 rounds")  # they take milliseconds
    assert learned == corrected(profile, prepared.facts, [(a.found.plan, a.spent_s) for a in attempts])
    plan = attempts[0].found.plan
    run_on(live, prepared, plan, Options(run_dir=tmp_path / "after", timeout_s=PATIENT))
    run_on(live, prepare_job(job_of("mlp", 3)), plan, Options(run_dir=tmp_path / "alone", timeout_s=PATIENT))
    assert_same(final_state(tmp_path / "after"), final_state(tmp_path / "alone"))


def test_who_wants_to_stop_while_plans_are_tried_waits_for_one_round(live: LiveFleet) -> None:
    prepared = prepare_job(job_of("mlp", 3))
    profile = profile_fleet(live, prepared, MeasuringTime(seconds=1.0, network_seconds=0.3))
    options = Options(tries=3, plan_s=0.5, timeout_s=PATIENT, should_stop=lambda: True)
    attempts, same = try_plans(live, prepared, profile, micro_batch_choices(prepared), options)
    assert len(attempts) == 1
    assert same is profile


@pytest.mark.parametrize("stages", [1, 3])
def test_what_nobody_needs_is_not_collected(live: LiveFleet, tmp_path: Path, stages: int) -> None:
    prepared = prepare_job(job_of("mlp", 4, checkpoint_every=2))
    plan = cut(prepared.facts, stages)
    result = run_on(live, prepared, plan, Options(run_dir=tmp_path / "run", timeout_s=PATIENT, keeps=False))
    assert len(rounds(read(result.run_dir / RECORDS))) == 4
    assert audit(result.run_dir).exact
    assert newest(result.run_dir) is None
    assert not result.model_path.exists()


def test_one_device_commits_by_itself_with_the_bits_of_three(live: LiveFleet, tmp_path: Path) -> None:
    prepared = prepare_job(job_of("dropout_net", 4, clip_norm=0.1))
    run_on(live, prepared, cut(prepared.facts, 3), Options(run_dir=tmp_path / "three", timeout_s=PATIENT))
    alone = Stage(blocks=(0, len(prepared.facts.blocks)), group=(Member(device="d1", share=4),))
    plan = Plan(micro_batch_size=4, micro_batches=4, stages=(alone,))
    again = prepare_job(job_of("dropout_net", 4, clip_norm=0.1))
    run_on(live, again, plan, Options(run_dir=tmp_path / "one", timeout_s=PATIENT))
    assert_same(final_state(tmp_path / "three"), final_state(tmp_path / "one"))
    assert audit(tmp_path / "one").exact


def test_the_final_model_loads_into_the_unsplit_module_and_evaluates_the_same(live: LiveFleet, tmp_path: Path) -> None:
    case = next(c for c in core_cases() if c.name == "decoder")  # tied weights: both names must be in the file
    inputs, labels = case.example(22, 3, torch.float32)
    job = dataclasses.replace(case_job(case, 3), eval_data=CaseSamples(inputs, labels))
    prepared = prepare_job(job)
    result = run_on(live, prepared, cut(prepared.facts, 3), Options(run_dir=tmp_path / "run", timeout_s=PATIENT))
    model = case.make_model()
    model.load_state_dict(load_file(result.model_path), strict=True)
    model.eval()
    with torch.no_grad():
        expected = float(case.loss(model(inputs), labels))
    evaluations = [r for r in read(result.run_dir / RECORDS) if isinstance(r, EvaluationRecord)]
    assert evaluations[-1].loss == pytest.approx(expected, rel=1e-5)


class Poisoned(CaseSamples):
    """Sample 20 has a NaN in it."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return (torch.full_like(x, float("nan")) if index == 20 else x), y


def test_a_nan_is_tried_twice_and_named_and_the_checkpoint_stays(tmp_path: Path) -> None:
    case = next(c for c in core_cases() if c.name == "mlp")
    inputs, labels = case.example(32, 3, torch.float32)
    job = dataclasses.replace(case_job(case, 2), data=Poisoned(inputs, labels), seed=1, checkpoint_every=1)
    first_bad = 0 if 20 in prepare_order(job, 0) else 1
    prepared = prepare_job(job)
    fleet = Fleet(devices=devices(2))
    with (
        pytest.raises(PotluckError, match=r"not committed.*tried twice") as caught,
        LiveFleet(fleet, Options()) as live,
    ):
        run_on(live, prepared, cut(prepared.facts, 2), Options(run_dir=tmp_path / "run", timeout_s=PATIENT))
    assert "stage 0" in str(caught.value)
    assert f"round {first_bad}:" in str(caught.value)
    incidents = [r for r in read(tmp_path / "run" / RECORDS) if isinstance(r, IncidentRecord)]
    assert [i.kind for i in incidents] == ["not_finite", "not_finite"]
    found = audit(tmp_path / "run")
    assert found.rounds == first_bad
    assert not found.problems
    if first_bad:
        assert newest(tmp_path / "run") is not None


def prepare_order(job: Job, round: int) -> tuple[int, ...]:
    from potluck.coordinator.samples.loading import training_loader

    loader = training_loader(job)
    loader.close()
    return loader.order.round(round).ids


def test_a_device_without_enough_memory_says_so(tmp_path: Path) -> None:
    case = next(c for c in core_cases() if c.name == "unet")
    tiny = potluck.DeviceSpec(name="tiny", memory_bytes=2_000)
    for others in ((), (potluck.DeviceSpec(name="roomy"),)):
        with pytest.raises(potluck.errors.InputError, match="tiny"):
            train(case_job(case, 1), Fleet(devices=(tiny, *others)), Options(run_dir=tmp_path / "run"))

"""What a job may ask for, over real agents: early stopping, best checkpoint, start from a file, metrics on devices."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import potluck
from potluck.cli.verbs.train import summary
from potluck.cli.verbs.verify import audit_lines
from potluck.commands.verifying import compare
from potluck.control.audit import audit
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.run_folder.folder import RunFolder
from potluck.coordinator.run_folder.ledger_file import LEDGER
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.training import TrainResult, run_on
from potluck.errors import InputError, PotluckError
from potluck.job.learning_rates import Step
from potluck.metrics.records import RECORDS, CheckpointRecord, EvaluationRecord, RunEnded, read
from potluck.model.empty import empty_weights
from potluck.tensors.checkpoint import best, best_path, load
from potluck.types import Fleet, Member, Plan, Stage
from tests.models.zoo_jobs import cut, devices

PATIENT = 60.0


@pytest.fixture(scope="module")
def live() -> Any:
    torch.set_num_threads(1)
    with LiveFleet(Fleet(devices=devices(2)), Options(timeout_s=PATIENT)) as fleet:
        yield fleet


def make_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def job(**changes: Any) -> potluck.Job:
    base = potluck.Job(
        model=make_model,
        loss=F.cross_entropy,
        optimizer=potluck.SGD(lr=0.2, momentum=0.9),
        data=data(40, 0),
        eval_data=data(21, 1),
        batch_size=16,
        micro_batch_size=4,
        epochs=2,
        metrics={"accuracy": lambda out, y: float((out.argmax(1) == y).float().mean())},
    )
    return dataclasses.replace(base, **changes)


def run(live: LiveFleet, what: potluck.Job, folder: Path) -> TrainResult:
    prepared = prepare_job(what)
    return run_on(live, prepared, cut(prepared.facts, 2), Options(run_dir=folder, timeout_s=PATIENT))


def evaluations(result: TrainResult) -> list[EvaluationRecord]:
    return [r for r in read(result.run_dir / RECORDS) if isinstance(r, EvaluationRecord)]


def test_training_stops_when_evaluations_stop_improving(live: LiveFleet, tmp_path: Path) -> None:
    frozen = Step(every=1, gamma=1e-9)  # the learning rate vanishes at once, so nothing improves after the first look
    result = run(live, job(epochs=20, schedule=frozen, best="-loss", patience=2), tmp_path / "run")
    seen = evaluations(result)
    assert len(seen) < 20
    assert [e.best for e in seen[-2:]] == [False, False]
    ended = [r for r in read(result.run_dir / RECORDS) if isinstance(r, RunEnded)]
    assert ended[-1].reason == "early"
    assert result.reason == "stopped early"
    assert audit(result.run_dir).finished
    said = audit_lines(result.run_dir, audit(result.run_dir))[-1]
    assert "stopped early" in said
    assert "not finished" not in said
    assert summary(result, 1.0, "")["best_model"] == str(best_path(result.run_dir)) + "/weights.safetensors"


def test_the_best_checkpoint_is_kept_and_is_the_one_with_the_best_metric(live: LiveFleet, tmp_path: Path) -> None:
    result = run(live, job(epochs=6, best="accuracy", keep=1), tmp_path / "run")
    found, path = best(result.run_dir), best_path(result.run_dir)
    assert found is not None
    assert path is not None
    seen = evaluations(result)
    assert found.value == max(e.metrics["accuracy"] for e in seen)
    _, weights, _ = load(path)
    model = make_model()
    model.load_state_dict(weights, strict=True)
    x, y = data(21, 1)
    assert float((model(x).argmax(1) == y).float().mean()) == pytest.approx(found.value)


def test_a_job_starts_from_a_file_and_callbacks_see_every_record(live: LiveFleet, tmp_path: Path) -> None:
    first = run(live, job(), tmp_path / "first")
    seen: list[Any] = []
    again = job(init=first.model_path, callbacks=(seen.append,), optimizer=potluck.SGD(lr=1e-12), epochs=1)
    second = run(live, again, tmp_path / "second")
    before, after = load_file(first.model_path), load_file(second.model_path)
    assert all(torch.allclose(before[n], after[n], atol=1e-6) for n in before)
    assert [type(r) for r in seen] == [type(r) for r in read(second.run_dir / RECORDS)]


def test_a_file_of_another_model_is_refused(live: LiveFleet, tmp_path: Path) -> None:
    save_file({"other": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"other\.safetensors.*0\.bias"):
        run(live, job(init=tmp_path / "other.safetensors"), tmp_path / "run")


def test_outputs_may_be_reduced_on_the_devices(live: LiveFleet, tmp_path: Path) -> None:
    plain = run(live, job(), tmp_path / "plain")
    shapes: list[torch.Size] = []

    def accuracy(hits: torch.Tensor, labels: torch.Tensor) -> float:
        shapes.append(hits.shape)
        return float(hits.mean())

    reduced = job(reduce=lambda out, y: (out.argmax(1) == y).float(), metrics={"accuracy": accuracy})
    result = run(live, reduced, tmp_path / "reduced")
    assert result.metrics["accuracy"] == pytest.approx(plain.metrics["accuracy"])
    assert shapes[-1] == (21,)


class TwoHeads(nn.Module):
    """Gives a dict in which the samples of one output lie along its second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.body = make_model()
        self.side = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        classes = self.body(x)
        return {"classes": classes, "turned": self.side(classes).t()}


def test_outputs_reach_loss_and_metrics_as_the_model_gives_them(live: LiveFleet, tmp_path: Path) -> None:
    def loss(outputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs["classes"], labels) + outputs["turned"].t().square().mean()

    shapes: list[tuple[int, ...]] = []

    def accuracy(outputs: Any, labels: torch.Tensor) -> float:
        shapes.append(tuple(outputs["turned"].shape))
        return float((outputs["classes"].argmax(1) == labels).float().mean())

    torch.manual_seed(5)
    result = run(live, job(model=TwoHeads, loss=loss, metrics={"accuracy": accuracy}), tmp_path / "run")
    model = TwoHeads()
    model.load_state_dict(load_file(result.model_path))
    x, y = data(21, 1)
    assert shapes[-1] == (2, 21)
    assert result.metrics["accuracy"] == pytest.approx(float((model(x)["classes"].argmax(1) == y).float().mean()))
    assert result.loss == pytest.approx(float(loss(model(x), y)), rel=1e-4)


def test_an_output_without_samples_is_named_before_training_starts(tmp_path: Path) -> None:
    class WithScale(TwoHeads):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"classes": self.body(x), "scale": self.side.weight.abs().mean(0)}

    what = job(model=WithScale, loss=lambda out, y: F.cross_entropy(out["classes"], y), metrics={})
    fleet = LiveFleet(Fleet(devices=devices(2)), Options(timeout_s=PATIENT))
    with pytest.raises(InputError, match="output scale holds no samples"), fleet as lonely:
        run(lonely, what, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_model_without_weights_takes_them_from_a_file_stage_by_stage(live: LiveFleet, tmp_path: Path) -> None:
    save_file(make_model().state_dict(), tmp_path / "weights.safetensors")

    def hollow() -> nn.Module:
        with empty_weights():
            return make_model()

    whole = run(live, job(init=tmp_path / "weights.safetensors"), tmp_path / "whole")
    pieces = run(live, job(model=hollow, init=tmp_path / "weights.safetensors"), tmp_path / "pieces")
    a, b = load_file(whole.model_path), load_file(pieces.model_path)
    assert [n for n in a if not torch.equal(a[n], b[n])] == []


def test_a_hand_cut_model_is_cut_between_its_modules(live: LiveFleet, tmp_path: Path) -> None:
    pieces = [nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Linear(16, 16), nn.Sequential(nn.Tanh(), nn.Linear(16, 3))]
    prepared = prepare_job(job(model=pieces))
    assert len(prepared.facts.blocks) == 3
    result = run(live, job(model=pieces), tmp_path / "run")
    nn.Sequential(*pieces).load_state_dict(load_file(result.model_path), strict=True)


def test_a_lone_device_tries_a_nan_twice_and_stops(tmp_path: Path) -> None:
    x, y = data(40, 0)
    x[7] = float("nan")
    prepared = prepare_job(job(data=(x, y), eval_data=None, metrics={}, epochs=1))
    alone = Stage(blocks=(0, len(prepared.facts.blocks)), group=(Member(device="d0", share=4),))
    plan = Plan(micro_batch_size=4, micro_batches=4, stages=(alone,))
    fleet = LiveFleet(Fleet(devices=devices(1)), Options(timeout_s=PATIENT))
    with pytest.raises(PotluckError, match="non-finite input data reached stage 0") as stopped, fleet as lonely:
        run_on(lonely, prepared, plan, Options(run_dir=tmp_path / "run", timeout_s=PATIENT))
    assert "checkpoint" not in str(stopped.value)  # there is none


def stop_after(rounds: int) -> Any:
    asked = itertools.count(1)
    return lambda: next(asked) == rounds


def test_a_resumed_run_remembers_its_best_checkpoint_and_goes_on_with_higher_terms(
    live: LiveFleet, tmp_path: Path
) -> None:
    values = iter([9.0, 1.0, 2.0, 3.0])
    whole = data(40, 1)

    def metric(out: torch.Tensor, y: torch.Tensor) -> float:
        return next(values) if len(y) == len(whole[1]) else 0.0  # metrics are tried on a part first

    what = job(epochs=None, rounds=4, eval_data=whole, eval_every=1, best="m", metrics={"m": metric}, keep=1)
    prepared = prepare_job(what)
    plan = cut(prepared.facts, 2)
    first = Options(run_dir=tmp_path / "run", timeout_s=PATIENT, should_stop=stop_after(2))
    run_on(live, prepared, plan, first)
    run_on(live, prepare_job(what), plan, Options(run_dir=tmp_path / "run", resume=True, timeout_s=PATIENT))
    found, path = best(tmp_path / "run"), best_path(tmp_path / "run")
    assert found is not None
    assert (found.round, found.value) == (1, 9.0)
    assert path is not None
    assert path.is_dir()
    assert not audit(tmp_path / "run").problems


def test_a_checkpoint_newer_than_the_ledger_is_not_resumed_from(live: LiveFleet, tmp_path: Path) -> None:
    what = job(epochs=None, rounds=4, checkpoint_every=1, eval_data=None, metrics={})
    run(live, what, tmp_path / "run")
    lines = (tmp_path / "run" / LEDGER).read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / LEDGER).write_bytes(b"".join(lines[:2]))  # as after a power cut
    prepared = prepare_job(what)
    options = Options(run_dir=tmp_path / "run", resume=True, timeout_s=PATIENT)
    assert run_on(live, prepared, cut(prepared.facts, 2), options).rounds == 4
    assert not audit(tmp_path / "run").problems


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", job(), b"{}", fsync=False)
    with pytest.raises(InputError, match="another process trains"):
        RunFolder(tmp_path / "run", job(), b"{}", fsync=False)
    folder.close()


def test_a_callback_that_raises_is_named(tmp_path: Path) -> None:
    def broken(record: object) -> None:
        raise ValueError("no thanks")

    fleet = LiveFleet(Fleet(devices=devices(2)), Options(timeout_s=PATIENT))
    with pytest.raises(InputError, match=r"callbacks\[0\] failed.*no thanks"), fleet as lonely:
        run(lonely, job(callbacks=(broken,)), tmp_path / "run")


def test_a_callback_that_raises_on_a_checkpoint_ends_the_run_at_once(tmp_path: Path) -> None:
    def broken(record: object) -> None:
        if isinstance(record, CheckpointRecord):
            raise ValueError("no checkpoints, please")

    what = job(callbacks=(broken,), epochs=None, rounds=500, checkpoint_every=1, eval_data=None, metrics={})
    fleet = LiveFleet(Fleet(devices=devices(2)), Options(timeout_s=PATIENT))
    with pytest.raises(InputError, match=r"callbacks\[0\] failed on a CheckpointRecord"), fleet as lonely:
        run(lonely, what, tmp_path / "run")
    assert audit(tmp_path / "run").rounds < 100


def test_a_batch_of_one_sample_is_enough(live: LiveFleet, tmp_path: Path) -> None:
    alone = job(batch_size=1, micro_batch_size=1, epochs=None, rounds=3, eval_data=None, metrics={})
    prepared = prepare_job(alone)
    members = [Member(device=d.name, share=1) for d in devices(2)]
    half = len(prepared.facts.blocks) // 2
    stages = (
        Stage(blocks=(0, half), group=(members[0],)),
        Stage(blocks=(half, len(prepared.facts.blocks)), group=(members[1],)),
    )
    plan = Plan(micro_batch_size=1, micro_batches=1, stages=stages)
    assert compare(live, prepared, plan, Options(timeout_s=PATIENT)).none

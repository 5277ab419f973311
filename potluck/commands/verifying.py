"""Is it the same numbers? Trains a few rounds cut and uncut, and says which rung of the equality ladder holds.

Rung 1: the same bits. Rung 2: in float64, after the rounds, max over tensors of ‖a − b‖ / ‖w_N − w_0‖ (over the whole
model) is at most 1e-8: the sums were only taken in another order.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from potluck.commands.training_job import choose_plan
from potluck.commands.trying import shorten
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.run_folder.ledger_file import LEDGER, Ledger
from potluck.coordinator.samples.loading import training_loader
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.training import run_on
from potluck.errors import InputError, PotluckError
from potluck.job.job import Job
from potluck.job.learning_rates import multiplier
from potluck.model.build import as_module
from potluck.plan.exactness import said_exact, why_added_otherwise, why_changed_on_the_way
from potluck.plan.routes import micro_batch_sizes
from potluck.tensors.checkpoint import load, newest
from potluck.types import Fleet, Plan
from potluck.uncut.uncut_run import AnyReference, reference_for

TOLERANCE = 1e-8  # relative, in float64: sums in another order differ by less after 8 rounds, and a mistake by far more
_LOW_PRECISION = ("bfloat16", "float16", "float32")


@dataclasses.dataclass(frozen=True)
class Verification:
    """What a comparison showed."""

    rung: int  # 1: bits; 2: float64 within TOLERANCE; 0: neither
    why: str
    rounds: int
    unequal: tuple[str, ...]  # tensors whose bits differ
    max_difference: float  # by rung 2's measure, in the job's own precision; float64 where rung 2 was asked


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two trained models differ."""

    unequal: tuple[str, ...]
    relative: float
    losses_equal: bool

    @property
    def none(self) -> bool:
        return not self.unequal and self.losses_equal


def verify_job(
    job: Job, plan: Plan | Path | None, fleet: Fleet, rounds: int = 8, options: Options | None = None
) -> Verification:
    """Trains a few rounds of the job cut by the plan and uncut, and compares."""
    options = options or Options()
    short = shorten(job, rounds)
    options.progress("tracing the model")
    prepared = prepare_job(short)
    chosen = choose_plan(prepared, plan, fleet)
    reason, rounded = why_added_otherwise(chosen, prepared.facts), why_changed_on_the_way(chosen)
    if reason and rounded:
        raise _undecided(reason, rounded)
    with LiveFleet(fleet, options) as live:
        options.progress(f"training {rounds} rounds on {len(chosen.devices)} devices and on one")
        found = compare(live, prepared, chosen, options)
        if found.none:
            passed = f" as in one process that does so too: {rounded}" if rounded else ""
            return Verification(1, f"every bit is the same{passed}", rounds, (), 0.0)
        if not reason:
            why = f"{len(found.unequal)} tensors differ, first {found.unequal[:1]}, where every bit should be the same"
            why += f"; {said}: look there first" if (said := said_exact(chosen)) else ""
            return Verification(0, why, rounds, found.unequal, found.relative)
        options.progress("bits differ as expected; once more in float64")
        double = prepare_in_float64(short, fleet, reason)
        exact = compare(live, double, chosen, options, lanes=False)
    if exact.relative <= TOLERANCE:
        return Verification(2, f"not the same bits: {reason}", rounds, found.unequal, exact.relative)
    low = sorted({t.dtype for t in double.built.programs.train.values.values()} & set(_LOW_PRECISION))
    if low:
        raise _undecided(reason, f"the model computes in {low[0]} whatever it is given")
    why = f"float64 differs by {exact.relative:.1e}, although only the order of sums may (at most {TOLERANCE:.0e})"
    return Verification(0, why, rounds, found.unequal, exact.relative)


def prepare_in_float64(job: Job, fleet: Fleet, reason: str) -> PreparedJob:
    """The job in double precision; a PotluckError of one line where there is none."""
    for device in fleet.devices:
        if device.kind not in ("cpu", "cuda"):
            raise _undecided(reason, f"{device.name} ({device.kind}) has no float64")
    try:
        return prepare_job(in_float64(job))
    except InputError as error:
        raise _undecided(reason, f"the model fails in float64: {error}") from error


def _undecided(reason: str, why: str) -> PotluckError:
    return PotluckError(
        f"cannot tell: {reason}, so bits differ and only float64 could show that nothing else does, but {why}; "
        "verify with a plan that must give the same bits: no stage shared by samples, tied weights in one stage"
    )


def compare(live: LiveFleet, prepared: PreparedJob, plan: Plan, options: Options, *, lanes: bool = True) -> Difference:
    """Trains the job on the fleet and uncut in this process; returns how they differ."""
    with tempfile.TemporaryDirectory(prefix="potluck-verify-") as folder:
        run_dir = Path(folder) / "run"
        before = {n: t.clone() for n, t in prepared.built.state.items()}
        run_on(live, prepared, plan, dataclasses.replace(options, run_dir=run_dir, resume=False, watchers=()))
        reference, losses = run_uncut(prepared, plan, lanes)
        return difference(run_dir, reference, losses, before)


def run_uncut(prepared: PreparedJob, plan: Plan, lanes: bool) -> tuple[AnyReference, list[float]]:
    """The job's rounds in this process, one thread, and the losses."""
    job = prepared.job
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    state = {n: t.clone() for n, t in prepared.built.state.items()}
    run = reference_for(
        plan, prepared.built.programs, state, prepared.optimizer, seed=job.seed, clip_norm=job.clip_norm, lanes=lanes
    )
    losses = []
    loader = training_loader(job)
    try:
        for round in range(loader.order.rounds):
            batch = loader.get(round)
            micro_batches, start = [], 0
            for size in micro_batch_sizes(len(batch.ids), plan.micro_batch_size):
                rows = slice(start, start + size)
                micro_batches.append(({n: t[rows] for n, t in batch.feeds.items()}, batch.weights[rows]))
                start += size
            losses.append(run.round(round, micro_batches, multiplier(job.schedule, round)).loss)
    finally:
        loader.close()
        torch.set_num_threads(threads)
    return run, losses


def difference(
    run_dir: Path, reference: AnyReference, losses: list[float], before: Mapping[str, torch.Tensor]
) -> Difference:
    """How a run's last checkpoint and ledger differ from the reference."""
    found = newest(run_dir)
    if found is None:
        raise PotluckError(f"{run_dir}: the run left no checkpoint to compare; look at its records.jsonl")
    _, weights, optimizer = load(found.path)
    held = reference.stage.state()
    expected = {**held.parameters, **held.buffers, **{f"optimizer {k}": t for k, t in held.optimizer.items()}}
    got = {**weights, **{f"optimizer {k}": t for k, t in optimizer.items()}}
    moved = torch.sqrt(
        sum(((held.parameters[n].double() - before[n].double()) ** 2).sum() for n in held.parameters)  # type: ignore[arg-type]
    )
    unequal, worst = [], 0.0
    for name, tensor in expected.items():
        other = got.get(name)
        if other is None or not torch.equal(tensor, other):
            unequal.append(name)
        if other is not None and name in held.parameters:
            gap = torch.linalg.vector_norm(tensor.double() - other.double())
            worst = max(worst, float(gap / moved) if moved > 0 else float(gap))
    ledger = Ledger(run_dir / LEDGER)
    recorded = [float.fromhex(e.loss) for e in ledger.entries()]
    ledger.close()
    return Difference(tuple(unequal), worst, recorded == losses)


def in_float64(job: Job) -> Job:
    """The job with every floating-point number in double precision."""
    data = tuple(_doubled(a) for a in job.data) if isinstance(job.data, tuple) else _DoubleSamples(job.data)
    module: Callable[[], Any] = lambda: as_module(job.model)[0].double()  # noqa: E731
    return dataclasses.replace(job, model=module, data=data)


class _DoubleSamples:
    """A data set whose floating-point tensors are float64."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return _doubled(self._data[index])


def _doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _doubled(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_doubled(v) for v in value)
    tensor = torch.as_tensor(value) if hasattr(value, "dtype") else value
    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
        return tensor.double()
    return value

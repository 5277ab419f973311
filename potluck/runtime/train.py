"""`potluck.train`: from a job and some devices to a trained model in a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potluck.control.audit import audit
from potluck.errors import InputError
from potluck.job import Job
from potluck.metrics.folds import throughput, usual_round_s
from potluck.metrics.records import RECORDS, EvaluationRecord, read
from potluck.model.program import encode
from potluck.plan.baselines import even_plan
from potluck.plan.memory import SpanBytes, stage_bytes
from potluck.plan.validate import read_plan, validate
from potluck.recover.checkpoint import load
from potluck.runtime.coordinator import Coordinator, Session
from potluck.runtime.layout import PlanLayout
from potluck.runtime.live_fleet import LiveFleet
from potluck.runtime.model_state import ModelState
from potluck.runtime.options import Options
from potluck.runtime.planning import plan_for
from potluck.runtime.prepare import PreparedJob, prepare_job
from potluck.runtime.run_folder import RunFolder, load_resume, new_run_dir
from potluck.runtime.saving import GO_ON
from potluck.types import DeviceSpec, Fleet, Plan


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    run_dir: Path
    model_path: Path
    rounds: int  # committed, of the whole run
    reason: str  # "finished", "stopped", or "stopped early"
    loss: float | None  # of the last evaluation, if there was one
    metrics: dict[str, float]
    samples_per_s: float
    samples_lost: int
    samples_doubled: int
    round_s: float | None = None  # of a round in the middle of this run, measured
    predicted_s: float | None = None  # the same, as planned


def choose_plan(prepared: PreparedJob, given: Plan | Path | None, fleet: Fleet) -> Plan:
    """The given plan, checked, or one stage per device."""
    job = prepared.job
    plan = read_plan(given) if isinstance(given, Path) else given
    if plan is None:
        _check_batch(job, fleet)
        plan = even_plan(prepared.facts, fleet.devices, job.micro_batch, job.batch_size // job.micro_batch)
    if plan.batch_size != job.batch_size:
        raise InputError(
            f"plan: {plan.micro_batches} micro-batches of {plan.micro_batch_size} make {plan.batch_size}; "
            f"the job's batch_size is {job.batch_size}; make them equal"
        )
    validate(plan, prepared.facts, fleet, job.batchnorm)
    return plan


def _check_batch(job: Job, fleet: Fleet) -> None:
    if job.batch_size < len(fleet.devices):
        raise InputError(
            f"job: batch_size {job.batch_size} is smaller than the {len(fleet.devices)} devices; "
            "give a larger batch or fewer devices"
        )


def _check_memory(prepared: PreparedJob, fleet: Fleet) -> None:
    """Whether every device has room for some block at all; what fits together, planning finds out."""
    facts, rows = prepared.facts, prepared.job.micro_batch
    spans = [SpanBytes.of(facts, (i, i + 1)) for i in range(len(facts.blocks))]
    least = min(stage_bytes(span, rows=rows, in_flight=1).total for span in spans)
    for device in fleet.devices:
        if 0 < device.memory_bytes < least:
            raise InputError(
                f"device {device.name}: {device.memory_bytes} bytes of memory, and the smallest block needs {least}; "
                "give it more, or leave it out"
            )


def train(job: Job, fleet: Fleet | None = None, options: Options | None = None) -> TrainResult:
    """Trains the job on the fleet (by default one local device) and returns where the model is.

    The fleet's devices are started on this machine; `options.joined` more may join from elsewhere. Without a plan, the
    devices are measured and the best plan found for them is used.
    """
    options = options or Options()
    if fleet is None and not options.joined:
        fleet = Fleet(devices=(DeviceSpec(name="local"),))
    options.progress("tracing the model")
    prepared = prepare_job(job)
    if fleet is not None and not options.joined:  # better now than with devices waiting
        if options.plan is not None or len(fleet.devices) == 1:
            choose_plan(prepared, options.plan, fleet)
        _check_batch(job, fleet)
        _check_memory(prepared, fleet)
    with LiveFleet(fleet, options) as live:
        _check_batch(job, live.fleet)
        if options.plan is not None or len(live.fleet.devices) == 1:
            return run_on(live, prepared, choose_plan(prepared, options.plan, live.fleet), options)
        planned = plan_for(live, prepared, options)
        found = planned.found
        return run_on(live, prepared, found.plan, options, reason=planned.reason, predicted_s=found.round_s)


def run_on(
    live: LiveFleet, prepared: PreparedJob, plan: Plan, options: Options, *, reason: str = "given",
    predicted_s: float | None = None,
) -> TrainResult:  # fmt: skip
    """Trains a prepared job by a plan on devices that are already here; they stay for the next one."""
    for device in sorted(set(live.roster.specs) - set(plan.devices)):
        options.progress(f"{device} is not in the plan and stays idle")
    session = _session(live, prepared, plan, options, reason)
    try:
        live.server.offer(session.digest, encode(prepared.built.programs))
        coordinator = Coordinator(session)
        coordinator.prepare()
        ended = coordinator.train()
        model_path = coordinator.saver.write_final()
    except BaseException as error:
        known = live.roster.explain(error)
        live.fail(known)
        if known is error:
            raise
        raise known from error
    finally:
        session.folder.close()
    return _result(session, coordinator, ended, model_path, predicted_s)


def _session(live: LiveFleet, prepared: PreparedJob, plan: Plan, options: Options, reason: str) -> Session:
    job, programs = prepared.job, prepared.built.programs
    digest = prepared.facts.digest
    model = ModelState(dict(prepared.built.state), {}, programs.aliases)
    if job.init is not None:
        model.load_file(Path(job.init))
    run_dir = options.run_dir or new_run_dir(Path("runs"))
    first, last_term = 0, 0
    if options.resume:
        found, last_term = load_resume(run_dir, digest, prepared.data_digest, job)
        manifest, weights, optimizer = load(found.path)
        model.load_weights(weights, str(found.path))
        model.optimizer = optimizer
        first = manifest.position.round
        live.roster.what_now = GO_ON
        for problem in found.skipped:
            options.progress(f"skipped a damaged checkpoint: {problem}")
    elif (run_dir / RECORDS).exists():
        raise InputError(f"{run_dir}: holds a run already; go on with --resume, or give another --run-dir")
    folder = RunFolder(run_dir, job, encode(programs), fsync=len(plan.devices) > 1)
    if options.resume:
        folder.ledger.truncate_after(first - 1)
    return Session(
        job=job,
        optimizer=prepared.optimizer,
        plan=plan,
        plan_reason=reason,
        layout=PlanLayout(programs, plan),
        digest=digest,
        data_digest=prepared.data_digest,
        model=model,
        roster=live.roster,
        link=live.link,
        folder=folder,
        first_round=first,
        term=live.next_term(last_term),
        timeout_s=options.timeout_s,
        watchers=list(options.watchers),
        should_stop=options.should_stop,
    )


def _result(
    session: Session, coordinator: Coordinator, reason: str, model_path: Path, predicted_s: float | None
) -> TrainResult:
    path = session.folder.path
    records = list(read(path / RECORDS))
    evaluations = [r for r in records if isinstance(r, EvaluationRecord)]
    found = audit(path)
    last = evaluations[-1] if evaluations else None
    return TrainResult(
        run_dir=path,
        model_path=model_path,
        rounds=coordinator.committed,
        reason=reason,
        loss=last.loss if last else None,
        metrics=dict(last.metrics) if last else {},
        samples_per_s=throughput(records),
        samples_lost=found.lost if isinstance(found.lost, int) else len(found.lost),
        samples_doubled=found.doubled if isinstance(found.doubled, int) else len(found.doubled),
        round_s=usual_round_s(records, session.term),
        predicted_s=predicted_s,
    )

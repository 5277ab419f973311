"""`potluck.train`: from a job and some devices to a trained model in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from potluck.advice import described
from potluck.commands.choosing import plan_for
from potluck.coordinator.fleet.live_fleet import InterruptedRun, LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.run_folder.folder import check_resumable, check_unfinished, kept_profile, known_run
from potluck.coordinator.run_folder.folder_names import new_run_dir
from potluck.coordinator.run_folder.process_record import RunProcess
from potluck.coordinator.run_folder.push_log import PUSHES, workers_of
from potluck.coordinator.run_folder.term_log import TERMS, read_terms
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.serving.serving_run import run_sync
from potluck.coordinator.training import TrainResult, run_on
from potluck.errors import InputError
from potluck.job.job import BEING_READ, Job
from potluck.metrics.records import RECORDS, has_ended
from potluck.metrics.sinks import RunSinks
from potluck.plan.baselines import even_plan
from potluck.plan.cost.memory import SpanBytes, stage_bytes
from potluck.plan.schedule.known_schedules import schedule_for, schedule_named
from potluck.plan.validate import read_plan, validate
from potluck.program.layout import PlanLayout
from potluck.settings.extensions import load_extensions
from potluck.tensors.tried_codecs import try_codecs
from potluck.types import RAW, DeviceSpec, Fleet, Plan


def choose_plan(prepared: PreparedJob, given: Plan | Path | None, fleet: Fleet) -> Plan:
    """The given plan, checked, or one stage per device."""
    job = prepared.job
    plan = read_plan(given) if isinstance(given, Path) else given
    if plan is None:
        _check_batch(job, fleet)
        plan = even_plan(prepared.facts, fleet.devices, job.micro_batch, job.batch_size // job.micro_batch)
        plan = msgspec.structs.replace(plan, schedule=schedule_for(job.staleness))
    if plan.batch_size != job.batch_size:
        raise InputError(
            f"plan: {plan.micro_batches} micro-batches of {plan.micro_batch_size} make {plan.batch_size}; "
            f"the job's batch_size is {job.batch_size}; make them equal"
        )
    validate(plan, prepared.facts, fleet, job.batchnorm)
    late = schedule_named(plan.schedule).staleness
    if late != job.staleness:
        raise InputError(
            f"plan: schedule {plan.schedule!a} makes gradients {late} steps late, and the job's staleness is "
            f"{job.staleness}; give the job staleness={late}, or another schedule"
        )
    if any(stage.codec != RAW for stage in plan.stages):
        try_codecs(PlanLayout(prepared.built.programs, plan), torch.device("cpu"))
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


def terms_before(options: Options) -> dict[int, Plan]:
    if not options.resume or options.run_dir is None:
        return {}
    return {number: term.plan for number, term in read_terms(options.run_dir / TERMS).items()}


def interrupted(options: Options, before: Mapping[int, Plan]) -> InterruptedRun | None:
    """Whom to wait for, as they may have held on to the run. After one that ended in order, nobody has."""
    if not before or options.run_dir is None or has_ended(options.run_dir / RECORDS):
        return None
    return InterruptedRun(known_run(options.run_dir), before[max(before)].devices)


def train(job: Job, fleet: Fleet | None = None, options: Options | None = None) -> TrainResult:
    """Trains the job on the fleet (by default one local device) and returns where the model is.

    The fleet's devices are started on this machine; `options.joined` more may join from elsewhere. Without a plan, the
    devices are measured and the best plan found for them is used.
    """
    load_extensions()
    if not isinstance(job, Job):
        raise InputError(f"potluck.train: the job is {described(job)}; give a potluck.Job")
    if BEING_READ.get():
        raise InputError("potluck.train is called while the job is read; put it below `if __name__ == '__main__':`")
    options = options or Options()
    if fleet is None and not options.joined:
        fleet = Fleet(devices=(DeviceSpec(name="local"),))
    run_dir = options.run_dir or new_run_dir(Path("runs"))
    with RunProcess(run_dir) as process, closing(RunSinks(run_dir, options.progress)) as sinks:
        watchers, listening = (*options.watchers, sinks), process.listening(options.listening)
        return _train(job, fleet, replace(options, run_dir=run_dir, listening=listening, watchers=watchers))


def _train_sync(prepared: PreparedJob, fleet: Fleet | None, options: Options) -> TrainResult:
    """Around a parameter server."""
    choice = options.sync
    if choice is None or options.run_dir is None:
        raise InputError("--sync: no policy; give one")
    if options.resume and not (options.run_dir / PUSHES).is_file():
        raise InputError(f"{options.run_dir}: was not trained with --sync; go on without it")
    if options.resume:
        check_unfinished(options.run_dir, prepared.job)
    known = known_run(options.run_dir) if options.resume and not has_ended(options.run_dir / RECORDS) else ""
    before = InterruptedRun(known, workers_of(options.run_dir)) if known else None
    with LiveFleet(fleet, options, before) as live:
        return run_sync(live, prepared, choice, options)


def _train(job: Job, fleet: Fleet | None, options: Options) -> TrainResult:
    options.progress("tracing the model")
    prepared = prepare_job(job, options.progress)
    if options.sync is not None:
        return _train_sync(prepared, fleet, options)
    if isinstance(job.data, str):
        raise InputError(f"job: data {job.data!r} is on the devices; train with --sync, where it stays there")
    if fleet is not None and not options.joined:  # better now than with devices waiting
        if options.plan is not None or len(fleet.devices) == 1:
            choose_plan(prepared, options.plan, fleet)
        _check_batch(job, fleet)
        _check_memory(prepared, fleet)
    before = terms_before(options)
    if options.resume and options.run_dir is not None:
        check_resumable(options.run_dir, prepared.facts.digest, prepared.data_digest, job)
    with LiveFleet(fleet, options, interrupted(options, before)) as live:
        if live.held and options.run_dir is not None:
            plan, profile = before[max(before)], kept_profile(options.run_dir)
            known = set() if profile is None else {d.device.name for d in profile.devices}
            return run_on(
                live, prepared, plan, options, reason="the coordinator is back", before=before,
                profile=profile if set(plan.devices) <= known else None,
            )  # fmt: skip
        _check_batch(job, live.fleet)
        if options.plan is not None or len(live.fleet.devices) == 1:
            return run_on(live, prepared, choose_plan(prepared, options.plan, live.fleet), options)
        planned = plan_for(live, prepared, options)
        found = planned.found
        return run_on(
            live, prepared, found.plan, options, reason=planned.reason, predicted_s=found.round_s,
            profile=planned.profile, left_out=dict(found.left_out),
        )  # fmt: skip

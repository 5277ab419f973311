"""`potluck.train`: from a job and some devices to a trained model in a run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from potluck.control.audit import audit
from potluck.errors import InputError
from potluck.job import Job
from potluck.metrics.folds import throughput
from potluck.metrics.records import RECORDS, EvaluationRecord, read
from potluck.model.blocks import facts as facts_of
from potluck.model.build import BuiltModel, as_module, build
from potluck.model.program import encode
from potluck.optimizers import Optimizer, resolve, slots
from potluck.plan.baselines import even_plan
from potluck.plan.validate import read_plan, validate
from potluck.recover.checkpoint import load
from potluck.recover.snapshot import read_weights
from potluck.runtime.carriers import open_link
from potluck.runtime.coordinator import Coordinator, Session, Watcher
from potluck.runtime.layout import PlanLayout
from potluck.runtime.loading import training_loader
from potluck.runtime.local import LocalAgents
from potluck.runtime.model_state import ModelState
from potluck.runtime.roster import Roster
from potluck.runtime.run_folder import RunFolder, load_resume, new_run_dir
from potluck.types import COORDINATOR, DeviceSpec, Fleet, ModelFacts, Plan
from potluck.wire.control import ControlServer
from potluck.wire.messages import FromAgent, FromCoordinator, Stop, Welcome


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    run_dir: Path
    model_path: Path
    rounds: int  # committed, of the whole run
    reason: str  # "finished" or "stopped"
    loss: float | None  # of the last evaluation, if there was one
    metrics: dict[str, float]
    samples_per_s: float
    samples_lost: int
    samples_doubled: int


@dataclass(frozen=True)
class Options:
    """How to run, beside what to train and on what."""

    plan: Plan | Path | None = None
    run_dir: Path | None = None
    resume: bool = False
    carrier: str = "zmq"
    listen: str = "127.0.0.1:0"
    joined: int = 0  # devices expected to join from elsewhere; 0: only the local ones
    join_timeout_s: float = 300.0
    timeout_s: float = 300.0
    watchers: Sequence[Watcher] = ()
    progress: Callable[[str], None] = field(default=lambda text: None)
    should_stop: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True)
class PreparedJob:
    """A job turned into programs, facts and initial state."""

    job: Job
    built: BuiltModel
    facts: ModelFacts
    optimizer: Optimizer


def prepare_job(job: Job) -> PreparedJob:
    """Builds the model and cuts it, from the first samples of the data."""
    torch.manual_seed(job.seed)
    module, hand_cut = as_module(job.model)
    with contextlib.closing(training_loader(job, ahead=0)) as loader:
        first = loader.get(0)
    built = build(module, job.loss, first.feeds, first.weights, hand_cut=hand_cut)
    optimizer = resolve(job.optimizer, module)
    return PreparedJob(job, built, facts_of(built.programs, slots(optimizer)), optimizer)


def choose_plan(prepared: PreparedJob, given: Plan | Path | None, fleet: Fleet) -> Plan:
    """The given plan, checked, or one stage per device."""
    job = prepared.job
    plan = read_plan(given) if isinstance(given, Path) else given
    if plan is None:
        if job.batch_size < len(fleet.devices):
            raise InputError(
                f"job: batch_size {job.batch_size} is smaller than the {len(fleet.devices)} devices; "
                "give a larger batch or fewer devices"
            )
        plan = even_plan(prepared.facts, fleet.devices, job.micro_batch, job.batch_size // job.micro_batch)
    if plan.batch_size != job.batch_size:
        raise InputError(
            f"plan: micro_batch_size {plan.micro_batch_size} x micro_batches {plan.micro_batches} is {plan.batch_size}, "
            f"the job's batch_size is {job.batch_size}; make them equal"
        )
    validate(plan, prepared.facts, fleet, job.batchnorm)
    return plan


def train(job: Job, fleet: Fleet | None = None, options: Options | None = None) -> TrainResult:
    """Trains the job on the fleet (by default one local device) and returns where the model is."""
    options = options or Options()
    fleet = fleet or Fleet(devices=(DeviceSpec(name="local"),))
    options.progress("tracing the model")
    prepared = prepare_job(job)
    local = fleet.devices
    plan = choose_plan(prepared, options.plan, fleet) if not options.joined else None
    host, _, port = options.listen.rpartition(":")
    with contextlib.ExitStack() as stack:
        server: ControlServer[FromAgent, FromCoordinator] = ControlServer(host, int(port), FromAgent)
        stack.callback(server.close)
        welcome = Welcome(
            carrier=options.carrier, bandwidth_bytes_s=fleet.bandwidth_bytes_s, timeout_s=options.timeout_s
        )
        roster = Roster(server, welcome)
        roster.interrupted = options.should_stop
        link = open_link(options.carrier, COORDINATOR, host)
        stack.callback(link.close)
        agents = stack.enter_context(LocalAgents(local, server.address))
        roster.died = agents.died
        options.progress(f"waiting for {len(local) + options.joined} devices at {server.address}")
        names = [d.name for d in local]
        roster.gather(
            len(local) + options.joined if options.joined else names,
            options.join_timeout_s if options.joined else 120.0,
            lambda name: options.progress(f"{name} joined"),
        )
        if plan is None:
            fleet = Fleet(devices=tuple(roster.specs.values()), bandwidth_bytes_s=fleet.bandwidth_bytes_s)
            plan = choose_plan(prepared, options.plan, fleet)
        roster.interrupted = lambda: False  # from here on an interrupt drains: rounds look at should_stop
        session = _session(prepared, plan, roster, link, options)
        stack.callback(session.folder.close)
        program = encode(prepared.built.programs)
        server.offer(session.digest, program)
        try:
            coordinator = Coordinator(session)
            coordinator.prepare()
            reason = coordinator.train()
        except BaseException as error:
            roster.broadcast(Stop(reason=f"the run failed: {error}" or "failed"))
            link.cancel("the run failed")
            raise
        model_path = coordinator.saver.write_final()
        roster.broadcast(Stop(reason="finished"))
    return _result(session, coordinator, reason, model_path)


def _session(prepared: PreparedJob, plan: Plan, roster: Roster, link: object, options: Options) -> Session:
    job, programs = prepared.job, prepared.built.programs
    digest = prepared.facts.digest
    model = ModelState(dict(prepared.built.state), {}, programs.aliases)
    if job.init is not None:
        model.load_weights(read_weights(Path(job.init)), str(job.init))
    run_dir = options.run_dir or new_run_dir(Path("runs"))
    first = 0
    if options.resume:
        found = load_resume(run_dir, digest, job)
        manifest, weights, optimizer = load(found.path)
        model.load_weights(weights, str(found.path))
        model.optimizer = optimizer
        first = manifest.position.round
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
        layout=PlanLayout(programs, plan),
        digest=digest,
        model=model,
        roster=roster,
        link=link,  # type: ignore[arg-type]
        folder=folder,
        first_round=first,
        timeout_s=options.timeout_s,
        watchers=list(options.watchers),
        should_stop=options.should_stop,
    )


def _result(session: Session, coordinator: Coordinator, reason: str, model_path: Path) -> TrainResult:
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
    )

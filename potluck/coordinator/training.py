"""One run of a prepared job by a plan, on devices that are already here."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from potluck.control.audit import audit
from potluck.coordinator.contexts import Session, TermOver
from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.fleet.fault_rehearsal import FaultRehearsal
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.rounds.checkpointer import GO_ON
from potluck.coordinator.rounds.replan import Replanner
from potluck.coordinator.rounds.round_loop import RoundLoop
from potluck.coordinator.run_folder.folder import RunFolder, load_resume
from potluck.coordinator.run_folder.folder_names import MODEL, new_run_dir
from potluck.coordinator.samples.loading import training_order
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.errors import InputError, PotluckError
from potluck.metrics.folds import throughput, usual_round_s
from potluck.metrics.records import RECORDS, EvaluationRecord, read
from potluck.program.layout import PlanLayout
from potluck.program.program import encode
from potluck.recover.copies import lines
from potluck.tensors.checkpoint import load, newest
from potluck.tensors.model_state import ModelState
from potluck.types import Plan, Profile
from potluck.wire.messages import FINISHED, SAVED


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    run_dir: Path
    model_path: Path  # where the model is, if it was kept
    rounds: int  # committed, of the whole run
    reason: str  # "finished", "stopped", or "stopped early"
    loss: float | None  # of the last evaluation, if there was one
    metrics: dict[str, float]
    samples_per_s: float
    samples_lost: int
    samples_doubled: int
    round_s: float | None = None  # of a round in the middle of this run, measured
    predicted_s: float | None = None  # the same, as planned


def run_on(
    live: LiveFleet, prepared: PreparedJob, plan: Plan, options: Options, *, reason: str = "given",
    predicted_s: float | None = None, profile: Profile | None = None, terms: type[Coordinator] = Coordinator,
    before: Mapping[int, Plan] | None = None,
) -> TrainResult:  # fmt: skip
    """Trains a prepared job by a plan on devices that are already here; they stay for the next one.

    Devices that are lost on the way are done without. With a profile, the plan for the rest is the fastest that is
    close to the one in force. `before` are the plans of a run whose devices held on while its coordinator was away.
    """
    for device in sorted(set(live.roster.specs) - set(plan.devices)):
        options.progress(f"{device} is not in the plan and stays idle")
    changes = Replanner(live, prepared, profile, options)
    session = replace(
        _session(live, prepared, plan, options, reason, held=before is not None), heard=changes.heard,
        observed=changes.observed, change=changes.due,
        copy_lines={} if profile is None else lines(profile),
    )  # fmt: skip
    rehearsal = None
    try:
        if options.chaos:
            first = session.folder.ledger.rounds if before else session.first_round
            rehearsal = FaultRehearsal(live.roster, options.chaos, first, session.started_s)
            session.watchers.append(rehearsal)
        live.server.offer(session.digest, encode(prepared.built.programs))
        live.roster.closed = False
        if before is None:  # else it may hold something that is needed, and measuring would take that room
            changes.measure_unknown()
        coordinator, ended = _train(terms(live, prepared, changes, session), before or {})
        model_path = coordinator.saver.write_final() if options.keeps else session.folder.path / MODEL
        live.farewell = SAVED if ended == "stopped" else FINISHED
    except BaseException as error:
        live.fail(error)
        raise
    finally:
        live.roster.closed = True
        changes.close()
        session.folder.close()
    if rehearsal is not None:
        options.progress(f"how each fault was survived: {rehearsal.write(session.folder.path)}")
    # Of another plan that came into force since, that says nothing.
    expected_s = predicted_s if coordinator.s.plan == plan else None
    return _result(session, coordinator, ended, model_path, expected_s)


def _train(terms: Coordinator, before: Mapping[int, Plan]) -> tuple[RoundLoop, str]:
    """Term after term, until the run is over."""
    try:
        terms.open(before)
        while True:
            coordinator = terms.next()
            with contextlib.suppress(TermOver):
                return coordinator, coordinator.train()
    except PotluckError as error:
        with contextlib.suppress(PotluckError):  # a callback that failed may fail on this record too
            terms.failed(error)
        raise
    finally:
        terms.close()


def _session(
    live: LiveFleet, prepared: PreparedJob, plan: Plan, options: Options, reason: str, *, held: bool
) -> Session:
    job, programs = prepared.job, prepared.built.programs
    digest = prepared.facts.digest
    model = ModelState(dict(prepared.built.state), {}, programs.aliases)
    if job.init is not None:
        model.load_file(Path(job.init))
    run_dir = options.run_dir or new_run_dir(Path("runs"))
    first, last_term = 0, 0
    if options.resume and not (held and newest(run_dir) is None):
        found, last_term = load_resume(run_dir, digest, prepared.data_digest, job)
        manifest, weights, optimizer = load(found.path)
        model.load_weights(weights, str(found.path))
        model.optimizer = optimizer
        first = model.round = manifest.position.round
        live.roster.what_now = GO_ON
        for problem in found.skipped:
            options.progress(f"skipped a damaged checkpoint: {problem}")
    elif (run_dir / RECORDS).exists() and not held:
        raise InputError(f"{run_dir}: holds a run already; go on with --resume, or give another --run-dir")
    folder = RunFolder(run_dir, job, encode(programs), fsync=len(plan.devices) > 1)
    if options.resume and not held:
        folder.ledger.truncate_after(first - 1)
    return Session(
        job=job,
        optimizer=prepared.optimizer,
        plan=plan,
        plan_reason=reason,
        layout=PlanLayout(programs, plan),
        digest=digest,
        data_digest=prepared.data_digest,
        outputs=prepared.built.outputs,
        model=model,
        roster=live.roster,
        link=live.link,
        folder=folder,
        order=training_order(job),
        first_round=first,
        term=last_term,
        timeout_s=options.timeout_s,
        first_copy_s=options.first_copy_s if options.keeps else math.inf,
        keeps=options.keeps,
        watchers=list(options.watchers),
        should_stop=options.should_stop,
    )


def _result(
    session: Session, coordinator: RoundLoop, reason: str, model_path: Path, predicted_s: float | None
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
        round_s=usual_round_s(records, coordinator.s.term),
        predicted_s=predicted_s,
    )

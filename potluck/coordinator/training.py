"""One run of a prepared job by a plan, on devices that are already here."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.control.audit import audit
from potluck.coordinator.contexts import RunContext, TermContext, TermOver
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
    before: Mapping[int, Plan] | None = None, left_out: Mapping[str, str] | None = None,
) -> TrainResult:  # fmt: skip
    """Trains a prepared job by a plan on devices that are already here; they stay for the next one.

    Devices that are lost on the way are done without. With a profile, the plan for the rest is the fastest that is
    close to the one in force. `before` are the plans of a run whose devices held on while its coordinator was away.
    `left_out` says of devices why the plan does without them, where that is known.
    """
    changes = Replanner(live, prepared, profile, options)
    changes.judged(plan, left_out or {})
    start, rehearsal = _start(live, prepared, plan, options, reason, changes, before)
    run = start.run
    try:
        live.server.offer(run.digest, encode(prepared.built.programs))
        live.roster.closed = False
        if before is None:  # else it may hold something that is needed, and measuring would take that room
            changes.measure_unknown()
        coordinator, ended = _train(terms(live, prepared, changes, start), before or {})
        model_path = coordinator.saver.write_final() if options.keeps else run.folder.path / MODEL
        live.farewell = SAVED if ended == "stopped" else FINISHED
    except BaseException as error:
        live.fail(error)
        raise
    finally:
        live.roster.closed = True
        changes.close()
        run.folder.close()
    if rehearsal is not None:
        options.progress(f"how each fault was survived: {rehearsal.write(run.folder.path)}")
    # Of another plan that came into force since, that says nothing.
    expected_s = predicted_s if coordinator.term.plan == plan else None
    return _result(run.folder.path, coordinator, ended, model_path, expected_s)


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


def _start(
    live: LiveFleet, prepared: PreparedJob, plan: Plan, options: Options, reason: str, changes: Replanner,
    before: Mapping[int, Plan] | None,
) -> tuple[TermContext, FaultRehearsal | None]:  # fmt: skip
    """Where a run starts, and what is rehearsed in it."""
    job, programs, held = prepared.job, prepared.built.programs, before is not None
    run_dir = options.run_dir or new_run_dir(Path("runs"))
    model, last_term = _first_state(live, prepared, options, run_dir, held=held)
    first, started_s = model.round, time.monotonic()
    folder = RunFolder(run_dir, job, encode(programs), fsync=len(plan.devices) > 1)
    if options.resume and not held:
        folder.ledger.truncate_after(first - 1)
    rehearsal = None
    if options.chaos:
        rounds = folder.ledger.rounds if before else first
        rehearsal = FaultRehearsal(live.roster, options.chaos, rounds, started_s)
    run = RunContext(
        job=job, optimizer=prepared.optimizer, digest=prepared.facts.digest, data_digest=prepared.data_digest,
        outputs=prepared.built.outputs, model=model, roster=live.roster, link=live.link, folder=folder,
        order=training_order(job),
        timeout_s=options.timeout_s, watchers=(*options.watchers, *(() if rehearsal is None else (rehearsal,))),
        should_stop=options.should_stop, started_s=started_s, keeps=options.keeps,
        return_s=options.return_s, checkpoint_s=options.checkpoint_s, copy_rules=options.copies,
        first_copy_s=options.first_copy_s if options.keeps else math.inf,
        copy_lines={} if changes.profile is None else lines(changes.profile, options.copies),
        heard=changes.heard, observed=changes.observed, change=changes.due,
        idle=changes.idle if options.keeps else dict,  # nobody needs to know it of a plan that is only tried
    )  # fmt: skip
    layout = PlanLayout(programs, plan)
    start = TermContext(run=run, plan=plan, layout=layout, term=last_term, first_round=first, plan_reason=reason)
    return start, rehearsal


def _first_state(
    live: LiveFleet, prepared: PreparedJob, options: Options, run_dir: Path, *, held: bool
) -> tuple[ModelState, int]:
    """The model before the first round of this run, and the last term there was: of a checkpoint, or none."""
    job, last_term = prepared.job, 0
    model = ModelState(dict(prepared.built.state), {}, prepared.built.programs.aliases)
    if job.init is not None:
        model.load_file(Path(job.init))
    if options.resume and not (held and newest(run_dir) is None):
        found, last_term = load_resume(run_dir, prepared.facts.digest, prepared.data_digest, job)
        manifest, weights, optimizer = load(found.path)
        model.load_weights(weights, str(found.path))
        model.optimizer = optimizer
        model.round = manifest.position.round
        live.roster.what_now = GO_ON
        for problem in found.skipped:
            options.progress(f"skipped a damaged checkpoint: {problem}")
    elif (run_dir / RECORDS).exists() and not held:
        raise InputError(f"{run_dir}: holds a run already; go on with --resume, or give another --run-dir")
    return model, last_term


def _result(
    path: Path, coordinator: RoundLoop, reason: str, model_path: Path, predicted_s: float | None
) -> TrainResult:
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
        round_s=usual_round_s(records, coordinator.term.term),
        predicted_s=predicted_s,
    )

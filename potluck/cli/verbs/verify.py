"""`potluck verify`: does a job train to the same numbers as on one machine, and did a run use every sample once?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from potluck.cli.session import emit, terminal
from potluck.commands.here import own_fleet
from potluck.control.audit import Audit, audit
from potluck.coordinator.run_folder.push_log import PUSHES, entries, workers_of
from potluck.job.job import load_job
from potluck.paramserver.applied_pushes import audit as audit_pushes
from potluck.plan.validate import read_plan
from potluck.settings.verb_settings import TrainSettings

TWO_DEVICES = (("local1", 1.0), ("local2", 1.0))


def verify_numbers(job_file: str, settings: TrainSettings, rounds: int) -> int:
    """Trains a few rounds cut and uncut and compares; returns the exit code."""
    # With one device there would be nothing to cut. Who else may join is a matter of training.
    local = settings.local or TWO_DEVICES
    settings = dataclasses.replace(settings, local=local, no_local=False, listen=None, devices=0)
    fleet = own_fleet(settings)
    plan = read_plan(settings.plan) if settings.plan is not None else None
    with terminal(f"potluck verify {job_file}", f"reading {job_file}", as_json=settings.json) as it:
        job = load_job(job_file, settings.staleness)
        from potluck.commands.verifying import verify_job

        options = it.options(carrier=settings.carrier, timeout_s=settings.timeout)
        found = verify_job(job, plan, fleet, rounds, options)
    if settings.json:
        emit(dataclasses.asdict(found))
    else:
        verdict = {1: "the same bits", 2: "the same numbers, to rounding", 0: "NOT the same numbers"}[found.rung]
        click.echo(f"{verdict}, after {found.rounds} rounds on {len(fleet.devices)} devices and on one: {found.why}")
        if found.rung != 1:
            click.echo(f"largest difference {found.max_difference:.1e} of the way the weights moved")
    return 0 if found.rung else 1


def verify_run(run_dir: Path, *, as_json: bool) -> int:
    """Judges the ledger of a run; returns the exit code."""
    if (run_dir / PUSHES).is_file():
        return _verify_pushes(run_dir, as_json=as_json)
    found = audit(run_dir)
    if as_json:
        whole = dataclasses.asdict(found) | {"exact": found.exact, "finished": found.finished}
        emit(whole | {"lost": len(found.lost), "doubled": len(found.doubled)})
    else:
        for line in audit_lines(run_dir, found):
            click.echo(line)
    return 0 if found.exact else 1


def _verify_pushes(run_dir: Path, *, as_json: bool) -> int:
    """Judges the ledger of a parameter server."""
    made = entries(run_dir / PUSHES)
    wrong = audit_pushes(made)
    samples = dict.fromkeys(workers_of(run_dir), 0)
    for entry in made:
        samples[entry.push.worker] += entry.push.samples
    skipped = sum(bool(entry.skipped) for entry in made)
    if as_json:
        emit({"exact": not wrong, "pushes": len(made), "skipped": skipped, "samples": samples, "problems": wrong})
    elif wrong:
        click.echo(f"{run_dir}: NOT every push counts exactly once")
        for problem in wrong:
            click.echo(f"  {problem}")
    else:
        click.echo(f"{run_dir}: every push counts exactly once, in the order in which its device made it")
        click.echo(f"{len(made)} pushes, {skipped} of them left out as harmful; samples of each device: {samples}")
    return 1 if wrong else 0


def audit_lines(run_dir: Path, found: Audit) -> list[str]:
    if not found.exact:
        return [f"{run_dir}: NOT every sample was used exactly once", *(f"  {problem}" for problem in found.problems)]
    so_far = "" if found.finished else " so far; the run has not finished"
    if found.stopped_early:
        so_far = "; it stopped early, as evaluations no longer got better"
    return [
        f"{run_dir}: every sample of every epoch was used exactly once, in the order that the seed gives",
        f"{found.rounds} of {found.rounds_expected} rounds, {found.epochs_complete} whole epochs, "
        f"{found.samples} samples{so_far}",
    ]

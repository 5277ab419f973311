"""`potluck train`: trains a job on local devices, and on those that join."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from potluck.cli.display.device_lines import device_lines, parts_of
from potluck.cli.session import emit, failures_as_json, terminal
from potluck.commands.here import (
    RUNS,
    check_run_dir,
    crowding,
    listen_address,
    local_fleet,
    newest_run,
    tell_local_devices,
)
from potluck.control.fault_script import Fault, check_devices, read_script
from potluck.errors import InputError
from potluck.job.job import Job, load_job
from potluck.metrics.records import RECORDS, EvaluationRecord, RunEnded, read
from potluck.metrics.run_view import evaluation_text
from potluck.plan.validate import read_plan
from potluck.profile.store import default_dir
from potluck.recover.copies import CopyRules
from potluck.settings.own_command import command
from potluck.settings.verb_settings import TrainSettings
from potluck.types import Fleet, Plan
from potluck.units import duration_text, milliseconds
from potluck.wire.trust import PlainTrust

if TYPE_CHECKING:
    from potluck.coordinator.training import TrainResult
    from potluck.tensors.checkpoint import Best


class Checked(NamedTuple):
    """What settings come to, as far as it is known before the job is read."""

    fleet: Fleet | None
    listen: str
    plan: Plan | None
    run_dir: Path | None
    chaos: tuple[Fault, ...]


def check(settings: TrainSettings, *, resume: bool) -> Checked:
    """What the settings come to; raises if they cannot be."""
    fleet = local_fleet(settings)
    listen = listen_address(settings)
    if settings.tries and settings.plan is not None:
        raise InputError("--tries looks for a plan, and --plan gives one; leave one of them out")
    plan = read_plan(settings.plan) if settings.plan is not None else None
    run_dir = newest_run() if resume and settings.run_dir is None else settings.run_dir
    check_run_dir(run_dir or RUNS / "new", resume=resume)
    chaos = read_script(settings.chaos) if settings.chaos is not None else ()
    if fleet is not None and not settings.devices:  # better now than when they are measured
        names = [device.name for device in fleet.devices]
        check_devices(chaos, names, names)
    _check_data(settings.data, fleet)
    return Checked(fleet, listen, plan, run_dir, chaos)


def _check_data(named: Sequence[str], fleet: Fleet | None) -> None:
    """Whether there is something to read: devices would find out only after they have started."""
    if not named or fleet is None:
        return
    from potluck.datasets.own_data import check_named, for_device  # only where it is needed, as it loads numpy

    for device in fleet.devices:
        for text in named:
            check_named(for_device(text, device.name))


def train(job_file: str, settings: TrainSettings, *, resume: bool) -> int:
    """Trains the job of a file and reports; returns the exit code."""
    with failures_as_json(settings.json):
        fleet, listen, plan, run_dir, chaos = check(settings, resume=resume)
    tell_local_devices(settings)
    started = time.monotonic()
    with terminal(f"potluck train {job_file}", f"reading {job_file}", as_json=settings.json) as it:
        job = load_job(job_file, settings.staleness)
        it.display.judged_by(job.best_metric[0])
        from potluck.commands.training_job import train as train_job
        from potluck.coordinator.run_folder.folder_names import new_run_dir

        it.run_dir = run_dir or new_run_dir(RUNS)
        options = it.options(
            plan=plan, run_dir=it.run_dir, resume=resume, carrier=settings.carrier, listen=listen,
            trust=PlainTrust.on(settings.plain_network),
            joined=settings.devices, join_timeout_s=settings.timeout, timeout_s=settings.timeout,
            profile_s=settings.profile_seconds, plan_s=settings.plan_seconds, tries=settings.tries,
            profile_dir=settings.profile_dir or default_dir(os.environ),
            listening=invitation(settings, it.display.announce, owned_data(job)), chaos=chaos,
            **lasting(settings),
        )  # fmt: skip
        if settings.sync is not None:
            from potluck.paramserver.policy_choice import choose

            options = replace(options, sync=choose(settings.sync), data=settings.data)
        result = train_job(job, fleet, options)
    report(result, time.monotonic() - started, as_json=settings.json, crowded=crowding(fleet))
    return 0


def lasting(settings: TrainSettings) -> dict[str, Any]:
    """What settings say about devices that fall silent, are lost, come back or slow down, as `Options` has it."""
    return {
        "silence_s": settings.silence,
        "return_s": settings.return_seconds,
        "checkpoint_s": settings.checkpoint_seconds,
        "replan_gain": settings.replan_gain,
        "link_ports": settings.link_ports,
        "copies": CopyRules(settings.between_losses, settings.copy_part),
    }


def report(
    result: TrainResult,
    seconds: float,
    *,
    as_json: bool,
    command: Sequence[str] | None = None,
    crowded: str | None = None,
) -> None:
    """Says what a run came to; `command` is what would train it, if not the command line."""
    go_on = resume_command(sys.argv[1:] if command is None else command, result.run_dir)
    if as_json:
        emit(summary(result, seconds, go_on) | ({"crowded": crowded} if crowded else {}))
        return
    click.echo(f"{result.reason} after {result.rounds} rounds: {pace(result, seconds)}")
    best, best_model = _best(result.run_dir)
    if (evaluated := last_evaluation(result.run_dir)) is not None:
        words = evaluation_text(evaluated, best.metric if best is not None else "")
        click.echo(f"metrics  {words}, after round {evaluated.round}")
    parts = parts_of(result.run_dir)
    if parts:  # each device passes over its own samples as often as it gets to
        click.echo(f"pushes   {result.samples_lost} samples lost, {result.samples_doubled} counted twice")
    else:
        click.echo(f"samples  {result.samples_lost} lost, {result.samples_doubled} used twice")
    for line in (*round_lines(result, crowded), *device_lines(parts, "devices")):
        click.echo(line)
    click.echo(f"model    {result.model_path}")
    if best is not None and best_model is not None and best.round != result.rounds:
        click.echo(f"best     {best_model}: {best.metric} {best.value:.4g}, after round {best.round}")
    if result.reason == "stopped":
        click.echo(f"go on    {go_on}")


def pace(result: TrainResult, seconds: float) -> str:
    """How long training took and how fast it was, and what went before it."""
    trained_s = min(training_s(result.run_dir), seconds)
    before = f"; {duration_text(seconds - trained_s)} of starting, measuring and planning before"
    words = f"{duration_text(trained_s)} of training, {result.samples_per_s:,.0f} samples/s"
    return words + (before if round(seconds - trained_s) else "")


def training_s(run_dir: Path) -> float:
    """Seconds that the last session of a run trained, evaluations and all."""
    ended = [r for r in read(run_dir / RECORDS) if isinstance(r, RunEnded)]
    return ended[-1].seconds if ended else 0.0


def round_lines(result: TrainResult, crowded: str | None) -> list[str]:
    """Planned against measured round time, where there are both, and what is known about the difference."""
    if result.predicted_s is None or result.round_s is None:
        return []
    lines = [f"round    {prediction(result.predicted_s, result.round_s)}"]
    return lines if crowded is None else [*lines, f"         {crowded}"]


def prediction(planned_s: float, measured_s: float) -> str:
    """How long a round took and was planned to take, in words."""
    words = f"{milliseconds(measured_s)} measured, {milliseconds(planned_s)} planned"
    more = measured_s / planned_s - 1
    return words if abs(more) < 0.005 else f"{words}: it took {abs(more):.0%} {'longer' if more > 0 else 'less'}"


def last_evaluation(run_dir: Path) -> EvaluationRecord | None:
    """The newest evaluation of a run; one that was stopped may have trained more rounds since."""
    return next((r for r in reversed(list(read(run_dir / RECORDS))) if isinstance(r, EvaluationRecord)), None)


def _best(run_dir: Path) -> tuple[Best | None, Path | None]:
    """The best of a run's evaluations, and its model, if that is kept."""
    from potluck.tensors.checkpoint import WEIGHTS, best, best_path

    path = best_path(run_dir)
    return best(run_dir), path / WEIGHTS if path is not None and path.is_dir() else None


def summary(result: TrainResult, seconds: float, go_on: str) -> dict[str, object]:
    evaluated, (_, best_model) = last_evaluation(result.run_dir), _best(result.run_dir)
    stopped = {"resume": go_on} if result.reason == "stopped" else {}
    parts = parts_of(result.run_dir)
    devices = {"devices": msgspec.to_builtins(parts)} if parts else {}
    return {
        "reason": result.reason,
        "rounds": result.rounds,
        "loss": result.loss,
        **result.metrics,
        "evaluated_after": evaluated.round if evaluated is not None else None,
        "samples_per_s": result.samples_per_s,
        "samples_lost": result.samples_lost,
        "samples_doubled": result.samples_doubled,
        "seconds": seconds,
        "training_s": training_s(result.run_dir),
        "round_s": result.round_s,
        "predicted_round_s": result.predicted_s,
        "model": str(result.model_path),
        "best_model": str(best_model) if best_model is not None else None,
        "run_dir": str(result.run_dir),
        **devices,
        **stopped,
    }


def resume_command(arguments: Sequence[str], run_dir: Path) -> str:
    """The command line that goes on where this one stopped."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != "--resume" and not argument.startswith("--run-dir"):
            kept.append(argument)
        skip = argument == "--run-dir"
    return command(*kept, "--resume", "--run-dir", run_dir)


def owned_data(job: Job) -> str | None:
    """The name of the data that devices bring, if they do."""
    return job.data if isinstance(job.data, str) else None


def invitation(settings: TrainSettings, say: Callable[[str], None], data: str | None = None) -> Callable[[str], None]:
    """What to say once the address is known: how the others join, with `data` of their own where that has a name."""

    def invite(address: str) -> None:
        if settings.devices:
            own = ["--data", f"{data}=PATH"] if data is not None else []
            network = ["--plain-network", str(settings.plain_network)] if settings.plain_network is not None else []
            say(f"on each other device run:  {command('join', address, *own, *network)}")

    return invite

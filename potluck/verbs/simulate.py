"""`potluck simulate`: what training would come to, here or on devices one only thinks of."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from potluck import units
from potluck.config import PlanSettings
from potluck.display.planning import compare_lines, run_lines
from potluck.errors import InputError, PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.validate import read_plan, validate
from potluck.simulate.gantt import svg, text
from potluck.simulate.run import SimulatedRun, run
from potluck.simulate.what_if import slowed, with_all_links, with_device, with_link, without_device
from potluck.types import DeviceSpec, Fleet, Plan, Profile
from potluck.verbs.measured import Measured
from potluck.verbs.plan import explainer
from potluck.verbs.planning import OWN, ask, failures_as_json, ground, run_summary, write_text
from potluck.verbs.session import emit

Asked = Mapping[str, Any]  # the what-if flags


def simulate(
    job_file: str, settings: PlanSettings, asked: Asked, *, plan_file: Path | None, compare: bool, gantt: Path | None
) -> int:
    """Simulates and shows; returns the exit code: 1 if a given plan does not fit."""
    with failures_as_json(settings.json):
        if compare and plan_file is not None:
            raise InputError("--compare asks every planner and --plan gives a plan; leave one of them out")
        plan = None if plan_file is None else read_plan(plan_file)
        it = what_if(ground(job_file, settings), asked)
        if compare:
            return _compare(it, settings)
        result = run(_given(plan, it) if plan is not None else _asked(it, settings), it.facts, it.profile)
        if gantt is not None:
            write_text(gantt, svg(result), "--gantt")
    if settings.json:
        emit(run_summary(result) | {"bottleneck": explainer(result, it).bottleneck()})
    else:
        _show(result, it, gantt)
    return 0 if result.fits else 1


def _show(result: SimulatedRun, it: Measured, gantt: Path | None) -> None:
    width = min(120, shutil.get_terminal_size((100, 20)).columns)
    for line in (*run_lines(result, it.facts), "", *text(result, width), ""):
        click.echo(line)
    click.echo(f"bottleneck  {explainer(result, it).bottleneck()}")
    if result.idle:
        click.echo(f"idle        {', '.join(result.idle)}")
    if gantt is not None:
        click.echo(f"drawn in    {gantt}")


def _asked(it: Measured, settings: PlanSettings) -> Plan:
    return ask(settings.planner, it, settings.plan_seconds).plan


def _given(plan: Plan, it: Measured) -> Plan:
    """A plan from a file, checked against the fleet; that it may not fit is what the simulation says."""
    fleet = Fleet(devices=tuple(DeviceSpec(name=d.device.name) for d in it.profile.devices))
    validate(plan, it.facts, fleet, it.job.batchnorm)
    return plan


def _compare(it: Measured, settings: PlanSettings) -> int:
    runs: list[tuple[str, SimulatedRun | str]] = []
    for name in (OWN, *PLANNERS):
        try:
            runs.append((name, run(ask(name, it, settings.plan_seconds).plan, it.facts, it.profile)))
        except PlanError as error:
            runs.append((name, str(error)))
    if settings.json:
        emit({name: {"error": r} if isinstance(r, str) else run_summary(r) for name, r in runs})
    else:
        for line in compare_lines(runs):
            click.echo(line)
    return 0


def what_if(it: Measured, asked: Asked) -> Measured:
    """The same job on a fleet changed as asked: added, removed, slowed, links, batch size, in this order."""
    profile = it.profile
    for given in asked["add"]:
        profile = with_device(profile, _new_device(given))
    for name in asked["remove"]:
        profile = _named("--remove", lambda p=profile, n=name: without_device(p, n))
    for given in asked["slow"]:
        name, factor = _split(given, "--slow", "nano1=2")
        profile = _named("--slow", lambda p=profile, n=name, f=factor: slowed(p, n, _factor(f)))
    for given in asked["link"]:
        profile = _with_link(profile, given)
    return replace(it, profile=profile, sizes=_sizes(it, asked["batch_size"]))


def _named(flag: str, change: Any) -> Profile:
    try:
        found: Profile = change()
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(flag) else f"{flag}: {text.removeprefix('profile: ')}") from None
    return found


def _split(given: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, value = given.rpartition("=")
    if not equals or not name or not value:
        raise InputError(f"{flag}: {given!r} does not say what; give it like {example}")
    return name.strip(), value.strip()


def _factor(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"--slow: {value!r} is no number; give how many times as long, like 2") from None


def _new_device(given: str) -> DeviceSpec:
    first, _, memory = given.partition(",")
    name, speed = _split(first, "--add", "pi=0.25 or pi=0.25,512MB")
    try:
        size = units.size_bytes(memory.strip()) if memory else 0
        return DeviceSpec(name=name, speed=float(speed), memory_bytes=size)
    except InputError as error:
        raise InputError(f"--add: {error}") from None
    except ValueError:
        raise InputError(f"--add: {speed!r} is no speed; give a number above 0, like pi=0.25") from None


def _with_link(profile: Profile, given: str) -> Profile:
    ends, rate = _split(given, "--link", "desk,pi=10Mbit or all=10Mbit")
    try:
        bandwidth = units.rate_bytes_s(rate)
    except InputError as error:
        raise InputError(f"--link: {error}") from None
    if ends == "all":
        return with_all_links(profile, bandwidth)
    a, comma, b = (part.strip() for part in ends.partition(","))
    if not comma:
        raise InputError(f"--link: {given!r} names one end; give it like desk,pi=10Mbit, or all=10Mbit")
    return _named("--link", lambda: with_link(profile, a, b, bandwidth))


def _sizes(it: Measured, batch_size: int | None) -> tuple[tuple[int, int], ...]:
    if batch_size is None:
        return it.sizes
    fitting = tuple((rows, batch_size // rows) for rows, _ in it.sizes if batch_size % rows == 0)
    if not fitting:
        raise InputError(
            f"--batch-size: {batch_size} cannot be cut into micro-batches of {it.job.micro_batch}; "
            f"give a multiple of {it.job.micro_batch}"
        )
    return fitting

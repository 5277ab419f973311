"""`potluck simulate`: what training would come to, here or on devices one only thinks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from potluck.cli.display.comparing import compare_lines
from potluck.cli.display.plan_lines import change_words, columns, hanging, run_lines
from potluck.cli.display.working import working
from potluck.cli.session import emit, failures_as_json
from potluck.cli.targets import check_writable, write_text
from potluck.cli.verbs.measured import MeasuredJob
from potluck.cli.verbs.plan import explainer
from potluck.cli.verbs.planners import ask, ground, known_names, look, run_summary
from potluck.cli.verbs.what_if_flags import WhatIfs, read_changes
from potluck.errors import InputError, PlanError
from potluck.plan.named_planners import OWN, planner_names
from potluck.plan.search.plan_search import Found
from potluck.plan.validate import read_plan, validate
from potluck.settings.verb_settings import PlanSettings
from potluck.simulate.gantt import svg, text
from potluck.simulate.outlook import Outlook, run
from potluck.types import DeviceSpec, Fleet, Plan


@dataclass(frozen=True)
class _Inquiry:
    """What was asked, all of it checked before anything is measured."""

    settings: PlanSettings
    changes: WhatIfs
    plan: Plan | None
    gantt: Path | None


def simulate(
    job_file: str,
    settings: PlanSettings,
    asked: Mapping[str, Any],
    *,
    plan_file: Path | None,
    compare: bool,
    gantt: Path | None,
) -> int:
    """Simulates and shows; returns the exit code: 1 if a given plan does not fit."""
    with failures_as_json(settings.json):
        inquiry = _read(settings, asked, plan_file, compare, gantt)
        changes = inquiry.changes
        it = ground(job_file, settings, lambda job, sizes: changes.of_sizes(sizes, job.micro_batch))
        changed = _changed(it, changes)
        if compare:
            return _compare(it, changed, inquiry)
        result = _simulated(changed, inquiry, changes)
        before = _without(it, inquiry) if changes else None
        if gantt is not None:
            write_text(gantt, svg(result), "--gantt")
    if settings.json:
        without = {"without_change": _outcome(before)} if before is not None else {}
        emit(run_summary(result) | {"bottleneck": explainer(result, changed).bottleneck()} | without)
    else:
        _show(result, changed, before, gantt)
    return 0 if result.fits else 1


def _read(
    settings: PlanSettings, asked: Mapping[str, Any], plan_file: Path | None, compare: bool, gantt: Path | None
) -> _Inquiry:
    if compare and plan_file is not None:
        raise InputError("--compare asks every planner and --plan gives a plan; leave one of them out")
    if gantt is not None:
        if gantt.suffix.lower() != ".svg":
            raise InputError(f"--gantt: {gantt} is no .svg file, and SVG is what is drawn; give one like round.svg")
        check_writable(gantt, "--gantt")
    changes = read_changes(asked)
    plan = None if plan_file is None else read_plan(plan_file)
    if plan is not None:
        changes.of_plan(plan)
    names = known_names(settings)
    if names is not None:
        changes.check_names(names)
    return _Inquiry(settings, changes, plan, gantt)


def _changed(it: MeasuredJob, changes: WhatIfs) -> MeasuredJob:
    profile, sizes = changes.of_profile(it.profile), changes.of_sizes(it.sizes, it.job.micro_batch)
    return replace(it, profile=profile, sizes=sizes)


def _simulated(it: MeasuredJob, inquiry: _Inquiry, changes: WhatIfs) -> Outlook:
    if inquiry.plan is not None:
        plan = changes.of_plan(inquiry.plan)
        _check(plan, it)
    else:
        plan = look(inquiry.settings.planner, it, inquiry.settings.plan_seconds).plan
    return run(plan, it.facts, it.profile)


def _without(it: MeasuredJob, inquiry: _Inquiry) -> Outlook | str:
    """The same without the changes; a text says why that cannot be had."""
    try:
        return _simulated(it, inquiry, WhatIfs())
    except PlanError as error:
        return str(error)


def _check(plan: Plan, it: MeasuredJob) -> None:
    """Raises unless the fleet can run the plan; that it may not fit is what the simulation says."""
    fleet = Fleet(devices=tuple(DeviceSpec(name=d.device.name) for d in it.profile.devices))
    validate(plan, it.facts, fleet, it.job.batchnorm)


def _outcome(result: Outlook | str) -> dict[str, Any]:
    return {"error": result} if isinstance(result, str) else run_summary(result)


def _show(result: Outlook, it: MeasuredJob, before: Outlook | str | None, gantt: Path | None) -> None:
    width = columns()
    for line in (*run_lines(result, it.facts, width), "", *text(result, width or 100), ""):
        click.echo(line)
    told = [f"bottleneck  {explainer(result, it).bottleneck()}"]
    told += [f"changed     {change_words(before, result)}"] if before is not None else []
    told += [f"idle        {', '.join(result.idle)}"] if result.idle else []
    told += [f"drawn in    {gantt}"] if gantt is not None else []
    for line in hanging(told, width):
        click.echo(line)


def _compare(it: MeasuredJob, changed: MeasuredJob, inquiry: _Inquiry) -> int:
    """Shows all planners side by side, and draws the best plan that fits if asked to."""
    runs: list[tuple[str, Outlook | str]] = []
    found: Found | None = None
    names = planner_names()
    with working() as say:
        for number, name in enumerate(names, start=1):
            say(f"asking {name}, {number} of {len(names)}")
            try:
                answer = ask(name, changed, inquiry.settings.plan_seconds)
                found = found or answer.found
                runs.append((name, run(answer.plan, changed.facts, changed.profile)))
            except PlanError as error:
                runs.append((name, str(error)))
    before = _without(it, _with_own_planner(inquiry)) if inquiry.changes else None
    best = _draw_best(runs, inquiry.gantt)
    own = runs[0][1]
    if inquiry.settings.json:
        without = {"without_change": _outcome(before)} if before is not None else {}
        emit({name: _outcome(r) for name, r in runs} | without)
        return 0
    told = []
    if before is not None and not isinstance(own, str):
        told.append(f"changed     {OWN}: {change_words(before, own)}")
    if best is not None:
        told.append(f"drawn in    {inquiry.gantt}, the plan of {best}")
    width = columns()
    for line in (*compare_lines(runs, None if found is None else found.bound_s, width), *hanging(told, width)):
        click.echo(line)
    return 0


def _with_own_planner(inquiry: _Inquiry) -> _Inquiry:
    """The inquiry with potluck's own planner, which a comparison is about."""
    return replace(inquiry, settings=replace(inquiry.settings, planner=OWN))


def _draw_best(runs: list[tuple[str, Outlook | str]], gantt: Path | None) -> str | None:
    """Draws the fastest plan, one that fits if any does; returns whose it is."""
    good = [(name, r) for name, r in runs if isinstance(r, Outlook)]
    if gantt is None or not good:
        return None
    name, best = max(good, key=lambda item: (item[1].fits, item[1].samples_per_s))
    write_text(gantt, svg(best), "--gantt")
    return name

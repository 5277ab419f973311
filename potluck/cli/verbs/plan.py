"""`potluck plan`: who should run what, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from potluck.cli.display.plan_lines import code_line, columns, hanging, reasons, run_lines, shape_text
from potluck.cli.session import emit, failures_as_json
from potluck.cli.targets import check_writable, write_text
from potluck.cli.verbs.measured import MeasuredJob
from potluck.cli.verbs.planners import PlannersAnswer, ground, look, look_at_bounds, plan_text, run_summary
from potluck.plan.events.event_simulation import Simulated
from potluck.plan.explain import Explainer, bound_words
from potluck.plan.search.bounds import BoundOutlook
from potluck.plan.search.bounds import words as bound_outlook_words
from potluck.plan.search.plan_search import Found
from potluck.settings.verb_settings import PlanSettings
from potluck.simulate.outlook import Outlook, run
from potluck.types import Plan
from potluck.units import milliseconds


def plan(job_file: str, settings: PlanSettings) -> int:
    """Finds a plan, shows it and says why; returns the exit code: 1 if it does not fit."""
    with failures_as_json(settings.json):
        if settings.out is not None:
            check_writable(settings.out, "--out")
        it = ground(job_file, settings)
        answer = look(settings.planner, it, settings.plan_seconds)
        result = run(answer.plan, it.facts, it.profile)
        outlooks = look_at_bounds(answer, it, settings.plan_seconds)
        if settings.out is not None:
            write_text(settings.out, plan_text(answer.plan), "--out")
    if settings.json:
        emit(summary(answer, result, it) | {"staleness": [_of_bound(one) for one in outlooks]})
    else:
        _show(answer, result, it, settings, outlooks)
    return 0 if result.fits else 1


def _of_bound(one: BoundOutlook) -> dict[str, Any]:
    return {
        "staleness": one.staleness, "round_s": one.found.round_s, "rounds_per_hour": one.rounds_per_hour,
        "most_bytes": one.most_bytes, "plan": msgspec.to_builtins(one.found.plan),
    }  # fmt: skip


def _show(
    answer: PlannersAnswer, result: Outlook, it: MeasuredJob, settings: PlanSettings,
    outlooks: Sequence[BoundOutlook] = (),
) -> None:  # fmt: skip
    width = columns()
    told = [*reasons(explainer(result, it)), *verdict(answer, result)]
    told += [f"staleness   {bound_outlook_words(outlooks)}"] if outlooks else []
    told += [line] if (line := code_line(result)) is not None else []
    if settings.out is not None:
        told.append(f"written to  {settings.out}; train with --plan {settings.out}")
    for text in (*run_lines(result, it.facts, width), "", *hanging(told, width)):
        click.echo(text)


def explainer(result: Outlook, it: MeasuredJob) -> Explainer:
    """What puts a simulated plan in words."""
    busy = {d.name: d.busy_s for d in result.devices}
    return Explainer(result.plan, it.facts, it.profile, Simulated(result.round_s, busy))


def verdict(answer: PlannersAnswer, result: Outlook) -> list[str]:
    """How good the plan is, who is left out, and what the next best one loses."""
    lines, found = [], answer.found
    why = dict(found.left_out) if found is not None else {}
    lines += [f"left out    {device}: {why.get(device, 'the planner has no work for it')}" for device in result.idle]
    if found is not None:
        if found.runner_up is not None and found.runner_up_s is not None:
            lines.append(f"next best   {_next_best(found.plan, found.round_s, found.runner_up, found.runner_up_s)}")
        lines.append(f"bound       {bound_words(found.round_s, found.bound_s)}")
        lines.append(
            f"searched    {found.tried:,} plans in {found.seconds:.1f} s; the cost model says "
            f"{milliseconds(found.cost_s)}, the simulation {milliseconds(found.round_s)}{_off(found)}"
        )
    if not result.fits:
        lines.append(f"DOES NOT FIT  {answer.planner} ignores memory; leave out --planner for a plan that fits")
    return lines


def _next_best(plan: Plan, round_s: float, other: Plan, other_s: float) -> str:
    """Another plan, and what it loses for each sample."""
    loses = (other_s / other.batch_size) / (round_s / plan.batch_size) - 1
    return f"{shape_text(other)}: " + ("as fast" if abs(loses) < 0.0005 else f"{loses:.1%} slower")


def _off(found: Found) -> str:
    """How far the cost model is from the simulation, if that can be seen."""
    off = found.cost_s / found.round_s - 1
    return "" if abs(off) < 0.0005 else f" ({off:+.1%})"


def summary(answer: PlannersAnswer, result: Outlook, it: MeasuredJob) -> dict[str, Any]:
    explain, found = explainer(result, it), answer.found
    whole = {
        "planner": answer.planner,
        **run_summary(result),
        "bottleneck": explain.bottleneck(),
        "cuts": explain.cuts(),
        "shares": explain.shares(),
        "depths": explain.depths(),
    }
    if found is not None:
        whole |= {
            "bound_s": found.bound_s,
            "cost_s": found.cost_s,
            "left_out": dict(found.left_out),
            "runner_up": None if found.runner_up is None else msgspec.to_builtins(found.runner_up),
            "runner_up_s": found.runner_up_s,
            "searched_s": found.seconds,
            "tried": found.tried,
        }
    return whole

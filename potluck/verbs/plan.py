"""`potluck plan`: who should run what, and why."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from potluck.config import PlanSettings
from potluck.display.planning import reasons, run_lines
from potluck.plan.events import Simulated
from potluck.plan.explain import Explainer, bound_words, runner_up_words
from potluck.simulate.gantt import milliseconds
from potluck.simulate.run import SimulatedRun, run
from potluck.verbs.measured import Measured
from potluck.verbs.planning import Answer, ask, failures_as_json, ground, plan_text, run_summary, write_text
from potluck.verbs.session import emit


def plan(job_file: str, settings: PlanSettings) -> int:
    """Finds a plan, shows it and says why; returns the exit code: 1 if it does not fit."""
    with failures_as_json(settings.json):
        it = ground(job_file, settings)
        answer = ask(settings.planner, it, settings.plan_seconds)
        result = run(answer.plan, it.facts, it.profile)
        if settings.out is not None:
            write_text(settings.out, plan_text(answer.plan), "--out")
    if settings.json:
        emit(summary(answer, result, it))
    else:
        for line in (*run_lines(result, it.facts), "", *reasons(explainer(result, it)), *verdict(answer, result)):
            click.echo(line)
        if settings.out is not None:
            click.echo(f"written to  {settings.out}; train with --plan {settings.out}")
    return 0 if result.fits else 1


def explainer(result: SimulatedRun, it: Measured) -> Explainer:
    """What puts a simulated plan in words."""
    busy = {d.name: d.busy_s for d in result.devices}
    return Explainer(result.plan, it.facts, it.profile, Simulated(result.round_s, busy))


def verdict(answer: Answer, result: SimulatedRun) -> list[str]:
    """How good the plan is, who is left out, and what the next best one loses."""
    lines, found = [], answer.found
    why = dict(found.left_out) if found is not None else {}
    lines += [f"left out    {device}: {why.get(device, 'the planner has no work for it')}" for device in result.idle]
    if found is not None:
        if found.runner_up is not None and found.runner_up_s is not None:
            words = runner_up_words(found.plan, found.runner_up, found.round_s, found.runner_up_s)
            lines.append(f"next best   {words}")
        lines.append(f"bound       {bound_words(found.round_s, found.bound_s)}")
        off = found.cost_s / found.round_s - 1
        lines.append(
            f"searched    {found.tried} plans in {found.seconds:.1f} s; the cost model says "
            f"{milliseconds(found.cost_s)}, the simulation {milliseconds(found.round_s)} ({off:+.1%})"
        )
    if not result.fits:
        lines.append(f"DOES NOT FIT  {answer.planner} ignores memory; leave out --planner for a plan that fits")
    return lines


def summary(answer: Answer, result: SimulatedRun, it: Measured) -> dict[str, Any]:
    """All of it as JSON has it."""
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

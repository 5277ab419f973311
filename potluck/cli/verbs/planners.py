"""What `plan` and `simulate` have in common: a job on a fleet, and a planner's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from potluck.cli.display.working import working
from potluck.cli.verbs.measured import Check, MeasuredJob, measured
from potluck.commands.here import local_fleet
from potluck.plan.groups import shareable
from potluck.plan.named_planners import OWN, check_planner, planned_by
from potluck.plan.schedule.known_schedules import schedule_for
from potluck.plan.search.bounds import BoundOutlook, bounds
from potluck.plan.search.plan_search import Found, find_plan
from potluck.profile.store import load
from potluck.settings.fleet_file import read_fleet
from potluck.settings.verb_settings import PlanSettings
from potluck.simulate.outlook import Outlook
from potluck.types import Plan


@dataclass(frozen=True)
class PlannersAnswer:
    """What a planner says; `found` is there if it is our own."""

    planner: str
    plan: Plan
    found: Found | None = None


def ground(job_file: str, settings: PlanSettings, check: Check = lambda job, sizes: None) -> MeasuredJob:
    """The job on the fleet that the settings describe; `check` may still refuse before anything is measured."""
    check_planner(settings.planner)
    if settings.fleet is None:
        return measured(job_file, settings, check=check)
    # One thread, as emulated devices have: what else runs on this machine matters less. A saved profile has its own.
    alone = settings if settings.load is not None else replace(settings, threads=settings.threads or 1)
    return measured(job_file, alone, read_fleet(settings.fleet), check)


def known_names(settings: PlanSettings) -> list[str] | None:
    """The devices to plan for, as far as they are known before any has joined."""
    if settings.fleet is not None:
        return [device.name for device in read_fleet(settings.fleet).devices]
    if settings.load is not None:
        return [device.device.name for device in load(settings.load).devices]
    fleet = local_fleet(settings)
    return None if settings.devices or fleet is None else [device.name for device in fleet.devices]


def look(planner: str, it: MeasuredJob, seconds: float) -> PlannersAnswer:
    """A planner's plan, with a word about what is going on."""
    with working() as say:
        say(f"looking for a plan, {seconds:g} s" if planner == OWN else f"asking {planner}")
        return ask(planner, it, seconds)


def ask(planner: str, it: MeasuredJob, seconds: float) -> PlannersAnswer:
    """A planner's plan; PlanError, with what is missing and what would help, if nothing fits."""
    facts, schedule = shareable(it.facts, it.job.batchnorm), schedule_for(it.job.staleness)
    if planner != OWN:
        rows = it.job.micro_batch if any(r == it.job.micro_batch for r, _ in it.sizes) else it.sizes[0][0]
        count = next(c for r, c in it.sizes if r == rows)
        plan = planned_by(planner, facts, it.profile, rows, count)
        return PlannersAnswer(planner, msgspec.structs.replace(plan, schedule=schedule) if it.job.staleness else plan)
    found = find_plan(facts, it.profile, it.sizes, seconds=seconds, schedule=schedule)
    return PlannersAnswer(planner, found.plan, found)


def look_at_bounds(answer: PlannersAnswer, it: MeasuredJob, seconds: float) -> tuple[BoundOutlook, ...]:
    """What other bounds on staleness would give, where the plan is our planner's."""
    if answer.found is None:
        return ()
    facts, known = shareable(it.facts, it.job.batchnorm), {it.job.staleness: answer.found}
    with working() as say:
        say(f"looking at what late gradients would give, {seconds:g} s")
        return bounds(facts, it.profile, it.sizes, known, seconds)


def run_summary(run: Outlook) -> dict[str, Any]:
    return {
        "round_s": run.round_s,
        "samples_per_s": run.samples_per_s,
        "utilisation": run.utilisation,
        "fits": run.fits,
        "plan": msgspec.to_builtins(run.plan),
        "idle": list(run.idle),
        "devices": [
            {
                "device": d.name,
                "stage": d.stage,
                "busy_s": d.busy_s,
                "memory_bytes": d.memory.total,
                "memory": d.memory.terms(),
                "limit_bytes": d.limit_bytes,
                "missing_bytes": d.missing_bytes,
            }
            for d in run.devices
        ],
    }


def plan_text(plan: Plan) -> str:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"

"""Predicted against measured: round times and peak memory of plans run on emulated devices."""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.overhead import workload
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.training import run_on
from potluck.errors import PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.search.plan_search import find_plan
from potluck.types import DeviceSpec, Fleet, Plan, Profile

QUICK_ROUNDS, FULL_ROUNDS = 4, 5  # the first two do not count
MEMORY_ROUNDS = 2
OURS = "potluck"
PROFILING = MeasuringTime(seconds=6.5, network_seconds=2.0)


@dataclass(frozen=True)
class Setting:
    """A model on a fleet."""

    model: str
    speeds: tuple[float, ...]
    bandwidth_bytes_s: float | None
    planners: tuple[str, ...]

    @property
    def fleet(self) -> Fleet:
        """The emulated devices; their speeds add up to less than two cores."""
        devices = tuple(DeviceSpec(name=f"d{i}", speed=speed) for i, speed in enumerate(self.speeds))
        return Fleet(devices=devices, bandwidth_bytes_s=self.bandwidth_bytes_s)


QUICK = (
    Setting("mobilenet_v2", (0.8, 0.4), 12.5e6, (OURS, "data-parallel")),
    Setting("gpt_10m", (0.7, 0.4, 0.3), 125e6, (OURS, "1f1b")),
)
FULL = tuple(
    Setting(model, fleet, rate, (OURS, "asteroid", "1f1b", *more))
    for model, fleet, rate, more in (
        ("mobilenet_v2", (0.8, 0.4), 12.5e6, ("data-parallel",)),
        ("mobilenet_v2", (0.7, 0.4, 0.3), 125e6, ("data-parallel",)),
        ("gpt_10m", (0.8, 0.4), 125e6, ()),
        ("gpt_10m", (0.7, 0.4, 0.3), 12.5e6, ()),
    )
)


def prepared_job(model: str, rounds: int) -> PreparedJob:
    """A workload made ready, for so many rounds."""
    prepared = _exported(model)
    return replace(prepared, job=replace(prepared.job, rounds=rounds))


@cache
def _exported(model: str) -> PreparedJob:
    """Exporting a model takes seconds: once is enough."""
    return prepare_job(workload(model, QUICK_ROUNDS).job)


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def plan_by(planner: str, prepared: PreparedJob, profile: Profile) -> Plan | None:
    """The plan of one planner, or None if it finds none."""
    job = prepared.job
    sizes = (job.micro_batch, job.batch_size // job.micro_batch)
    try:
        if planner == OURS:
            return find_plan(prepared.facts, profile, [sizes], seconds=2.0).plan
        return PLANNERS[planner](prepared.facts, profile, *sizes)
    except PlanError:
        return None


def prediction_errors(quick: bool) -> dict[str, Any]:
    """Errors of predicted round times, and how many pairs of planners are ranked right."""
    errors: list[float] = []
    right = pairs = 0
    cells = []
    for setting in QUICK if quick else FULL:
        measured = _measure(setting, QUICK_ROUNDS if quick else FULL_ROUNDS)
        for planner, (predicted_s, measured_s) in measured.items():
            errors.append(predicted_s / measured_s - 1)
            cells.append({**_words(setting), "planner": planner, "predicted_s": predicted_s, "measured_s": measured_s})
        for (p1, m1), (p2, m2) in itertools.combinations(measured.values(), 2):
            if max(m1, m2) / min(m1, m2) > 1.1:
                pairs += 1
                right += (p1 < p2) == (m1 < m2)
    sizes = np.abs(errors)
    return {
        "predict_error_median": float(np.median(sizes)),
        "predict_error_p95": float(np.percentile(sizes, 95)),
        "predict_bias": float(np.median(errors)),
        "ranking_right": right / pairs if pairs else None,
        "ranking_pairs": pairs,
        "cells": cells,
    }


def _words(setting: Setting) -> dict[str, Any]:
    return {"model": setting.model, "speeds": setting.speeds, "bandwidth_bytes_s": setting.bandwidth_bytes_s}


def _measure(setting: Setting, rounds: int) -> dict[str, tuple[float, float]]:
    """Planner → predicted and measured seconds of a round.

    The machine's mood changes from minute to minute. Every plan is run there and back again, profiles are measured
    before, between and after, and the means are taken: what drifts slowly cancels out.
    """
    prepared = prepared_job(setting.model, rounds)
    measured: dict[str, list[float]] = {}
    with LiveFleet(setting.fleet, Options(timeout_s=120)) as live, tempfile.TemporaryDirectory() as folder:
        profiles = [profile_fleet(live, prepared, PROFILING)]
        plans = {p: plan for p in setting.planners if (plan := plan_by(p, prepared, profiles[0])) is not None}
        for turn, planner in enumerate([*plans, *reversed(plans)]):
            if turn == len(plans):
                profiles.append(profile_fleet(live, prepared, PROFILING))
            options = Options(run_dir=Path(folder) / str(turn), timeout_s=120)
            round_s = run_on(live, prepared, plans[planner], options).round_s
            assert round_s is not None, "too few rounds"
            measured.setdefault(planner, []).append(round_s)
        profiles.append(profile_fleet(live, prepared, PROFILING))
    predicted = {n: [simulate(plan, prepared.facts, p).round_s for p in profiles] for n, plan in plans.items()}
    for planner in plans:
        words = ("/".join(f"{s:.3f}" for s in seconds[planner]) for seconds in (predicted, measured))
        say("{} {} {}: predicted {} s, measured {} s".format(setting.model, setting.speeds, planner, *words))
    return {planner: (float(np.mean(predicted[planner])), float(np.mean(measured[planner]))) for planner in plans}


MEMORY = (  # at full speed: bytes do not depend on it
    Setting("mobilenet_v2", (1.0, 1.0), None, ("1f1b", "data-parallel", OURS)),
    Setting("gpt_10m", (1.0, 1.0), None, ("1f1b", "data-parallel", OURS)),
)


def memory_ratios() -> dict[str, Any]:
    """Peak resident bytes over planned ones, for every device of six plans, each on devices started for it."""
    ratios: list[float] = []
    cells = []
    for setting in MEMORY:
        prepared = prepared_job(setting.model, MEMORY_ROUNDS)
        with LiveFleet(setting.fleet, Options(timeout_s=120)) as live:
            profile = profile_fleet(live, prepared, MeasuringTime(seconds=6.0, network_seconds=0.5))
        for planner in setting.planners:
            plan = plan_by(planner, prepared, profile)
            if plan is None:
                continue
            planned = peak_bytes(plan, prepared.facts, tables=Tables(profile))
            for device, peak in _peaks(setting.fleet, prepared, plan).items():
                ratios.append(peak / planned[device].total)
                cells.append({"model": setting.model, "planner": planner, "device": device, "measured_bytes": peak,
                              "planned_bytes": planned[device].total})  # fmt: skip
                words = f"{peak / 1e6:.0f} MB, planned {planned[device].total / 1e6:.0f} MB"
                say(f"{setting.model} {planner} {device}: {words}")
    return {"memory_ratio_min": min(ratios), "memory_ratio_max": max(ratios), "memory_cells": cells}


def _peaks(fleet: Fleet, prepared: PreparedJob, plan: Plan) -> dict[str, int]:
    """Most bytes each device of the plan held, less what it held while idle. Pages of files are the system's."""
    with LiveFleet(fleet, Options(timeout_s=120)) as live, tempfile.TemporaryDirectory() as folder:
        pids = {name: process.pid for name, process in live.agents.processes.items() if name in plan.devices}
        idle = {name: _status(pid)["RssAnon"] for name, pid in pids.items()}
        for pid in pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak so far
        run_on(live, prepared, plan, Options(run_dir=Path(folder) / "run", timeout_s=120))
        return {n: _status(pid)["VmHWM"] - _status(pid)["RssFile"] - idle[n] for n, pid in pids.items()}


def _status(pid: int) -> dict[str, int]:
    lines: Sequence[str] = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}

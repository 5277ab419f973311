"""How good are the plans, how fast are they found, and does what they predict come true?

    python -m benchmarks.planner --quick --json

gap_*: seconds of the chosen plan over the best of all plans, less one, on seeded instances with uneven links and tight
memory; asteroid_gap_*: the same for Asteroid as published. gap_sim_p95: by the event simulation. predict_error_*: of
the predicted round time, against rounds run on emulated devices. memory_ratio_*: peak resident bytes of a device, less
an idle one's, over what was planned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks.exhaustive import all_that_fit, best_of_all
from benchmarks.predictions import memory_ratios, prediction_errors, say
from potluck.errors import PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.search.bound import lower_bound_s
from potluck.plan.search.plan_search import Search, find_plan
from potluck.types import ModelFacts, Plan, Profile
from tests.models.planner_instances import instance

Figures = dict[str, Any]
ROWS, MICRO_BATCHES = 8, 8
SEARCH_S = 6.0  # four devices take less than one
PARTS = ("gaps", "speeds", "memory", "predict")
LARGE = {"plan_s_40x8": (8, 40, 1.6), "plan_s_64x16": (16, 64, 8.0), "plan_s_64x100": (100, 64, 15.0)}  # and seconds


def violations(plan: Plan, facts: ModelFacts, profile: Profile) -> int:
    """Devices of a plan that would need more memory than they have."""
    limits = {d.device.name: d.device.memory_bytes for d in profile.devices}
    uses = peak_bytes(plan, facts, tables=Tables(profile))
    return sum(1 for name, use in uses.items() if limits[name] and use.total > limits[name])


def start_gaps(pool: Executor, instances: int, devices: int, blocks: int, simulated: int) -> Callable[[], Figures]:
    """Against every plan there is; the work begins now, and the result is there when it is asked for."""
    found = pool.map(partial(_gap, devices, blocks), range(instances), chunksize=2)
    by_events = pool.map(_simulated_gap, range(1000, 1000 + simulated))
    return lambda: gaps(f"{devices} × {blocks}", [g for g in found if g is not None], list(by_events))


def gaps(what: str, judged: Sequence[Gap], by_events: Sequence[float]) -> Figures:
    """How far above the best of all plans."""
    say(f"{len(judged)} instances of {what}: mean gap {np.mean([g.gap for g in judged]):.4f}")
    asteroid = [g.asteroid for g in judged if g.asteroid is not None]
    return {
        "gap_mean": float(np.mean([g.gap for g in judged])),
        "gap_p95": float(np.percentile([g.gap for g in judged], 95)),
        "gap_max": float(np.max([g.gap for g in judged])),
        "gap_sim_p95": float(np.percentile(by_events, 95)) if by_events else None,
        "bound_over_optimum": float(np.median([g.bound for g in judged])),
        "bound_over_optimum_max": float(np.max([g.bound for g in judged])),
        "asteroid_gap_mean": float(np.mean(asteroid)),
        "asteroid_gap_max": float(np.max(asteroid)),
        "asteroid_without_plan": len(judged) - len(asteroid),
        "instances": len(judged),
        "memory_violations": sum(g.broken for g in judged),
    }


@dataclass(frozen=True)
class Gap:
    """One instance: how far above the best of all plans."""

    gap: float
    bound: float
    asteroid: float | None
    broken: int


def _gap(devices: int, blocks: int, seed: int) -> Gap | None:
    """None where no plan fits at all."""
    facts, profile = instance(seed, devices, blocks)
    cost = CostModel(facts, profile, ROWS, MICRO_BATCHES)
    best, _ = best_of_all(cost)
    fresh = CostModel(facts, profile, ROWS, MICRO_BATCHES)
    pool = Search(fresh, 0, time.monotonic() + SEARCH_S, plain=True).run()  # the plans that the exhaustive search has
    if not pool:
        assert np.isinf(best), "a plan fits and was not found"
        return None
    return Gap(
        gap=pool[0][0] / best - 1,
        bound=lower_bound_s(cost) / best,
        asteroid=_asteroid_gap(cost, best),
        broken=violations(pool[0][1], facts, profile),
    )


def _asteroid_gap(cost: CostModel, best: float) -> float | None:
    """None where Asteroid finds no plan, or one that breaks a limit."""
    try:
        plan = PLANNERS["asteroid"](cost.facts, cost.profile, ROWS, MICRO_BATCHES)
    except PlanError:
        return None
    if violations(plan, cost.facts, cost.profile):
        return None
    return float(cost.seconds([cost.of_plan(plan)])[0]) / best - 1


def _simulated_gap(seed: int) -> float:
    """Against the best of all plans by the event simulation, on three devices and five blocks."""
    facts, profile = instance(seed, 3, 5)
    cost = CostModel(facts, profile, ROWS, MICRO_BATCHES)
    best = min(simulate(cost.plan(line), facts, profile, tables=cost.tables).round_s for line in all_that_fit(cost))
    return find_plan(facts, profile, [(ROWS, MICRO_BATCHES)], seconds=5.0).round_s / best - 1


def speeds() -> dict[str, Any]:
    """Seconds to plan large problems, and whether every baseline planner is at most as fast by the simulation."""
    figures: dict[str, Any] = {}
    for name, (devices, blocks, given_s) in LARGE.items():
        facts, profile = instance(1, devices, blocks)
        sizes = (ROWS, 2 * MICRO_BATCHES if devices < 16 else 4 * MICRO_BATCHES)
        found = find_plan(facts, profile, [sizes], seconds=given_s)
        figures[name] = found.seconds
        others = {}
        for planner, make in PLANNERS.items():
            try:
                plan = make(facts, profile, *sizes)
            except PlanError:
                continue
            if not violations(plan, facts, profile):
                others[planner] = simulate(plan, facts, profile).round_s
        better = [n for n, s in others.items() if s < found.round_s * 0.999]
        figures[f"{name}_over_bound"] = found.round_s / found.bound_s
        figures[f"{name}_best_baseline"] = min(others.values(), default=float("inf")) / found.round_s
        figures[f"{name}_beaten_by"] = better
        figures["memory_violations"] = figures.get("memory_violations", 0) + violations(found.plan, facts, profile)
        say(f"{name}: {found.seconds:.1f} s, best baseline takes {figures[f'{name}_best_baseline']:.2f} times as long")
    return figures


@click.command()
@click.option("--quick", is_flag=True, help="About five minutes.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS))
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(quick: bool, parts: Sequence[str], as_json: bool) -> None:
    """Judges the planner."""
    wanted = parts or PARTS
    figures: dict[str, Any] = {"quick": quick}
    began = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        # Nothing here depends on how fast the machine is: planning keeps the time it is given, and bytes are bytes.
        large = pool.submit(speeds) if "speeds" in wanted else None
        small = start_gaps(pool, 200, 4, 7, 20) if "gaps" in wanted else dict
        middle = start_gaps(pool, 30, 5, 10, 0) if "gaps" in wanted and not quick else dict
        if "memory" in wanted:
            figures |= memory_ratios()
        figures |= small() | {f"5x10_{key}": value for key, value in middle().items()}
        if large is not None:
            broken = figures.get("memory_violations", 0)
            figures |= large.result()
            figures["memory_violations"] += broken
    if "predict" in wanted:
        figures |= prediction_errors(quick)
    figures["seconds"] = time.monotonic() - began
    for key, value in figures.items():
        print(f"{key:28} {value:.4f}" if isinstance(value, float) else f"{key:28} {value}")
    if as_json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

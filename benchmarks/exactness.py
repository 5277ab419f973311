"""Is a cut run the same as an uncut one? Every zoo model × several plans, through real agents.

    python -m benchmarks.exactness --quick --json

Bits: single-device groups and groups by turns must equal the uncut program bit for bit (every parameter, buffer,
optimizer tensor and loss), and with dropout off also the eager module. All other cases are judged in float64 after 8
rounds: max over tensors of ‖a − b‖ / ‖w_N − w_0‖ ≤ 1e-8.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click
import msgspec
import torch

from benchmarks.eager import eager_difference
from potluck.commands.verifying import TOLERANCE, compare
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.plan.exactness import why_not_uncut
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.types import STEADY_SCHEDULE, Fleet, Plan
from tests.models.case import Case
from tests.models.zoo import all_cases, core_cases
from tests.models.zoo_jobs import case_job, cut, devices, grouped

ROUNDS, JUDGED_ROUNDS = 3, 8
FLEET = 4
GLOO_MODELS = ("residual_cnn", "unet", "decoder")


@dataclass(frozen=True)
class Outcome:
    """One case."""

    model: str
    plan: str
    carrier: str
    hard: bool  # AdamW with groups, clipping, schedule, dropout
    judged: str  # "bits" or "float64"
    equal: bool
    relative: float
    unequal: tuple[str, ...]
    seconds: float
    failure: str = ""
    staleness: int = 0  # steps that gradients are late


def plans(prepared: PreparedJob, hard: bool, quick: bool) -> Iterator[tuple[str, Plan]]:
    """Plans whose result is judged by bits (or, for weights tied across a cut, in float64)."""
    facts = prepared.facts
    if hard:
        yield "3 stages, deep, weights late", cut(facts, 3, deep=True)
        yield "turns 3+1 | 1", grouped(facts, "turns", (3, 1), first=True)
        yield "4 stages, deep, weights late, steady", steady(cut(facts, 4, deep=True))
        yield "turns 3+1 | 1, steady", steady(grouped(facts, "turns", (3, 1), first=True))
    else:
        yield "2 stages", cut(facts, 2)
        yield "4 stages", cut(facts, 4)
        if not quick:
            yield "3 stages", cut(facts, 3)
            yield "4 stages, deep, weights late", cut(facts, 4, deep=True)
            yield "1 | turns 2+2", grouped(facts, "turns", (2, 2), first=False)


def steady(plan: Plan) -> Plan:
    """The same plan with rounds that overlap: gradients are one step late."""
    return msgspec.structs.replace(plan, schedule=STEADY_SCHEDULE)


def sample_plans(prepared: PreparedJob, quick: bool) -> Iterator[tuple[str, Plan]]:
    """Plans that share a stage by samples."""
    if not any(b.coupled for b in prepared.facts.blocks):
        yield "samples 5+3 | 1", grouped(prepared.facts, "samples", (5, 3), 8, first=True)
        yield "samples 5+3 | 1, steady", steady(grouped(prepared.facts, "samples", (5, 3), 8, first=True))
        if not quick:
            yield "1 | samples 2+6", grouped(prepared.facts, "samples", (2, 6), 8, first=False)


def run_case(
    live: LiveFleet, options: Options, case: Case, prepared: PreparedJob, name: str, plan: Plan, hard: bool
) -> Outcome:
    started = time.monotonic()
    by_bits = not why_not_uncut(plan, prepared.facts)
    try:
        found = compare(live, prepared, plan, options, lanes=by_bits)
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return Outcome(case.name, name, options.carrier, hard, "bits", False, 0.0, (), 0.0, text)
    seconds = time.monotonic() - started
    equal = found.none if by_bits else found.relative <= TOLERANCE
    judged = "bits" if by_bits else "float64"
    unequal = () if equal else found.unequal[:3]
    late = schedule_named(plan.schedule).staleness
    return Outcome(case.name, name, options.carrier, hard, judged, equal, found.relative, unequal, seconds, "", late)


def outcomes(live: LiveFleet, options: Options, case: Case, quick: bool) -> Iterator[Outcome]:
    """Every case of one model."""
    for hard in (False, True):
        prepared = prepare_job(case_job(case, ROUNDS, hard=hard))
        if not hard and not case.dropout and options.carrier == "zmq":
            started = time.monotonic()
            unequal = eager_difference(case, prepared)
            seconds = time.monotonic() - started
            yield Outcome(case.name, "uncut = eager", "-", False, "bits", not unequal, 0.0, unequal[:3], seconds)
        for name, plan in plans(prepared, hard, quick):
            if not why_not_uncut(plan, prepared.facts):
                yield run_case(live, options, case, prepared, name, plan, hard)
    precise = prepare_job(case_job(case, JUDGED_ROUNDS, dtype=torch.float64, micro_batch=8, hard=True))
    for name, plan in sample_plans(precise, quick):
        yield run_case(live, options, case, precise, name, plan, True)
    if precise.facts.tied:
        for stages in (2, 3, 4):
            yield run_case(live, options, case, precise, f"{stages} stages, tied", cut(precise.facts, stages, 8), True)


def work(models: list[str], carrier: str, quick: bool) -> None:
    """Runs the cases of some models on one fleet of agents; one JSON line per outcome."""
    torch.set_num_threads(1)
    options = Options(carrier=carrier, timeout_s=120.0)
    known = {c.name: c for c in all_cases()}
    with LiveFleet(Fleet(devices=devices(FLEET)), options) as live:
        for name in models:
            for outcome in outcomes(live, options, known[name], quick):
                print(json.dumps(asdict(outcome)), flush=True)


def start_workers(names: list[str], quick: bool) -> list[subprocess.Popen[str]]:
    """Two workers with half of the models each, and one with some of them over Gloo."""
    shares = [("zmq", names[0::2]), ("zmq", names[1::2])]
    flags = ["--quick"] if quick else []
    workers = []
    for carrier, models in [*shares, ("gloo", [m for m in GLOO_MODELS if m in names])]:
        command = [sys.executable, "-m", "benchmarks.exactness", "--worker", ",".join(models), "--carrier", carrier]
        if models:
            workers.append(subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True))
    return workers


def collect(workers: list[subprocess.Popen[str]]) -> tuple[list[Outcome], list[str]]:
    import queue
    import threading

    lines: queue.Queue[tuple[int, str | None]] = queue.Queue()

    def read(index: int, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put((index, line))
        lines.put((index, None))

    for index, worker in enumerate(workers):
        threading.Thread(target=read, args=(index, worker), daemon=True).start()
    found: list[Outcome] = []
    failures: list[str] = []
    open_workers = len(workers)
    while open_workers:
        index, line = lines.get(timeout=1800)
        if line is None:
            open_workers -= 1
            code = workers[index].wait(60)
            if code:
                failures.append(f"worker {index} ended with code {code}")
            continue
        if line.startswith("{"):
            outcome = Outcome(**json.loads(line))
            found.append(outcome)
            mark = "=" if outcome.equal else "≠"
            detail = outcome.failure or f"{outcome.judged} {outcome.relative:.1e}"
            print(
                f"{mark} {outcome.model:20} {outcome.plan:18} {outcome.carrier:5} {'hard' if outcome.hard else '':4} "
                f"{detail}  {outcome.seconds:.1f} s",
                file=sys.stderr,
            )
    return found, failures


def _counted(late: int, bits: list[Outcome], close: list[Outcome]) -> dict[str, object]:
    """What was found with gradients so many steps late."""
    mine, near = ([o for o in some if o.staleness == late] for some in (bits, close))
    return {
        "bit_equal": sum(o.equal for o in mine),
        "bit_unequal": sum(not o.equal for o in mine),
        "rung2_max": max((o.relative for o in near), default=0.0),
    }


def summary(found: list[Outcome], failures: list[str], seconds: float) -> dict[str, object]:
    bits = [o for o in found if o.judged == "bits" and not o.failure]
    close = [o for o in found if o.judged == "float64" and not o.failure]
    return {
        "cases": len(found),
        "bit_equal": sum(o.equal for o in bits),
        "bit_unequal": sum(not o.equal for o in bits),
        "rung2_cases": len(close),
        "rung2_max": max((o.relative for o in close), default=0.0),
        "by_staleness": {str(late): _counted(late, bits, close) for late in sorted({o.staleness for o in found})},
        "hard_cases": sum(o.hard for o in found),
        "gloo_cases": sum(o.carrier == "gloo" for o in found),
        "models": sorted({o.model for o in found}),
        "failures": failures + [f"{o.model}, {o.plan}: {o.failure}" for o in found if o.failure],
        "seconds": round(seconds, 1),
    }


@click.command()
@click.option("--quick", is_flag=True, help="Fewer plans per model; about five minutes on two cores.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
@click.option("--models", default="", help="Only these, comma-separated.")
@click.option("--no-hf", is_flag=True, help="Without the models from transformers.")
@click.option("--worker", default="", hidden=True)
@click.option("--carrier", default="zmq", hidden=True)
def main(quick: bool, as_json: bool, models: str, no_hf: bool, worker: str, carrier: str) -> None:
    """Compare cut and uncut training, bit by bit. Example: python -m benchmarks.exactness --quick --json"""
    if worker:
        work(worker.split(","), carrier, quick)
        return
    started = time.monotonic()
    names = models.split(",") if models else [c.name for c in (core_cases() if no_hf else all_cases())]
    workers = start_workers(names, quick)
    try:
        found, failures = collect(workers)
    finally:
        for process in workers:
            process.kill()
            process.wait()
    result = summary(found, failures, time.monotonic() - started)
    for key, value in result.items():
        print(f"{key:12} {value}")
    if as_json:
        print(json.dumps(result))
    if result["bit_unequal"] or result["failures"] or result["rung2_max"] > TOLERANCE:  # type: ignore[operator]
        raise SystemExit(1)


if __name__ == "__main__":
    main()

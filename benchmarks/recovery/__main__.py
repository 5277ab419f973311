"""Does it survive, how soon does it go on, and is anything lost?

    python -m benchmarks.recovery --quick --json

Devices of the fleet `lab` at 100 Mbit/s are killed, frozen, cut off, sent away and added while they train; every run is
compared with one in which nothing happened. Needs root (see docs/testbed.md).
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.recovery.jobs import job_of, plan_of
from benchmarks.recovery.session import Deed, Happening, Outcome, Setup, run
from benchmarks.testbed import Testbed, TestbedMissing, check_machine, ended_by_signals
from benchmarks.throughput.cells import FLEETS
from benchmarks.throughput.measure import say
from potluck.runtime.prepare import prepare_job
from potluck.types import COORDINATOR

ROUNDS, AFTER = 12, 4
RUNG_2 = 1e-8


@dataclass(frozen=True)
class Scenario:
    """Something that happens to a run."""

    name: str
    model: str
    deed: Deed
    needs_loss: bool = True  # a device is declared lost by it


def _kill(*devices: str, apart_s: float = 0.0) -> Deed:
    def deed(here: Happening) -> None:
        for device in devices:
            here.bed.kill(device)
            time.sleep(apart_s)

    return deed


def _return(here: Happening) -> None:
    here.bed.kill("tx2-1")
    time.sleep(4.0)
    here.join("tx2-1")


def scenarios(model: str) -> Iterator[Scenario]:
    """What happens to a model's run. Devices are those of its plan."""
    yield Scenario("kill one that has its stage alone", model, _kill("nx"))
    yield Scenario("kill another", model, _kill("tx2-1"))
    yield Scenario("kill two neighbours at once", model, _kill("nx", "tx2-1"))
    yield Scenario("kill one more during the recovery", model, _kill("tx2-2", "nano-1", apart_s=0.15))
    yield Scenario("freeze", model, lambda here: here.bed.freeze("tx2-1"))
    yield Scenario("pull the cable", model, lambda here: here.bed.cut("nx"))
    yield Scenario("one way only, to the coordinator", model, lambda here: here.bed.partition("tx2-2", COORDINATOR))
    yield Scenario("leave in order", model, lambda here: here.leave("tx2-1"), needs_loss=False)
    yield Scenario("vanish and come back", model, _return)


@dataclass
class Tally:
    """What the scenarios came to."""

    ran: int = 0
    failed: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    detect_s: list[float] = field(default_factory=list)
    switch_s: list[float] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)

    def add(self, scenario: Scenario, outcome: Outcome, whole: Outcome, start: dict[str, torch.Tensor]) -> None:
        """Takes one run into account."""
        name = f"{scenario.model}: {scenario.name}"
        self.ran += 1
        self.lost += outcome.lost
        self.doubled += outcome.doubled
        losses = [i for i in outcome.incidents if i.kind == "lost"]
        problem = outcome.problem
        if not problem and not outcome.finished:
            problem = "the ledger does not close"
        if not problem and bool(losses) != scenario.needs_loss:
            problem = f"incidents: {[i.kind for i in outcome.incidents]}"
        if not problem:
            self.differences[name] = difference(outcome.state, whole.state, start)
            if self.differences[name] > (0.0 if outcome.unsplit else RUNG_2):
                problem = f"differs by {self.differences[name]:.1e}"
        if problem:
            self.failed.append(f"{name}: {problem}")
        for incident in outcome.incidents:
            self.switch_s.append(incident.recovery_s or 0.0)
            self.replayed.append(incident.replayed_rounds)
        if losses and outcome.fault_s is not None:
            self.detect_s.append(outcome.began_s + losses[0].at_s - outcome.fault_s)
        words = "; ".join(f"{i.what}: {i.action}, ready after {i.recovery_s or 0:.2f} s" for i in outcome.incidents)
        say(f"{name}: {problem or 'survived'}; {words}")


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> float:
    """How far two results are apart: 0.0 if every bit is equal, else the largest norm over the whole way travelled."""
    if a.keys() != b.keys():
        return float("inf")
    if all(torch.equal(a[n], b[n]) for n in a):
        return 0.0
    way = math.sqrt(sum(float((b[n].double() - start[n].double()).norm()) ** 2 for n in start if n in b))
    return max(float((a[n].double() - b[n].double()).norm()) for n in a) / way


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Median and 95th percentile."""
    found = sorted(values)
    if not found:
        return {"median": None, "p95": None}
    return {"median": statistics.median(found), "p95": found[min(len(found) - 1, int(0.95 * len(found)))]}


def heavy_ratio(bed: Testbed, model: str, folder: Path) -> dict[str, float]:
    """Seconds until everybody is ready again after a device with a stage of its own is lost: the hard way, and ours."""
    prepared = prepare_job(job_of(model))
    found = {}
    for heavy in (False, True):
        # Late enough for copies of a large model to be whole.
        after = 20 if model == "resnet50" else AFTER
        setup = Setup(model, plan_of(model, prepared.facts), rounds=after + 4, heavy=heavy)
        outcome = run(bed, setup, folder / f"{model}-heavy-{heavy}", _kill("nx"), after, seed=1)
        took = [i.recovery_s for i in outcome.incidents if i.kind == "lost" and i.recovery_s is not None]
        say(f"{model} {'heavy' if heavy else 'ours'}: {took} {outcome.problem}")
        found["heavy" if heavy else "ours"] = took[0] if took else float("nan")
    return found


@click.command()
@click.option("--quick", is_flag=True, help="Every scenario once: about 45 minutes.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Of a full run: how often each.")
@click.option("--model", "models", multiple=True, help="Only these: mobilenet_v2, small_gpt; may be repeated.")
@click.option("--heavy/--no-heavy", "with_heavy", default=True, help="Whether to compare with heavy rescheduling.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(quick: bool, seeds: int, models: tuple[str, ...], with_heavy: bool, as_json: bool) -> None:
    """Loses devices. Example: python -m benchmarks.recovery --quick --model small_gpt"""
    ended_by_signals()
    try:
        check_machine()
    except TestbedMissing as error:
        raise click.ClickException(str(error)) from None
    tally, began = Tally(), time.monotonic()
    overhead: dict[str, float] = {}
    heavy: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name, Testbed(FLEETS / "lab-100.toml") as bed:
        for model in models or ("small_gpt", "mobilenet_v2"):
            prepared = prepare_job(job_of(model))
            setup = Setup(model, plan_of(model, prepared.facts), ROUNDS)
            whole = run(bed, setup, Path(name) / f"{model}-whole", None, 0, 0)
            if whole.problem:
                raise click.ClickException(f"{model}: with nobody lost: {whole.problem}")
            bare = run(bed, Setup(model, setup.plan, ROUNDS, copies=False), Path(name) / f"{model}-bare", None, 0, 0)
            overhead[model] = whole.cpu_s / bare.cpu_s - 1 if bare.cpu_s else float("nan")
            say(f"{model}: {whole.cpu_s:.1f} CPU seconds with copies, {bare.cpu_s:.1f} without")
            for scenario in scenarios(model):
                for seed in range(1 if quick else seeds):
                    folder = Path(name) / f"{model}-{tally.ran}"
                    outcome = run(bed, setup, folder, scenario.deed, AFTER, seed)
                    tally.add(scenario, outcome, whole, dict(prepared.built.state))
        if with_heavy:
            heavy = {model: heavy_ratio(bed, model, Path(name)) for model in ("resnet50", "mobilenet_v2")}
    everything: dict[str, Any] = {
        "quick": quick, "scenarios": tally.ran, "failed": tally.failed, "samples_lost": tally.lost,
        "samples_doubled": tally.doubled, "equal": tally.differences, "detect_s": spread(tally.detect_s),
        "switch_s": spread(tally.switch_s), "rounds_replayed": tally.replayed, "protection_overhead": overhead,
        "heavy_s": heavy,
        "heavy_ratio": {m: t["heavy"] / t["ours"] for m, t in heavy.items()}, "seconds": time.monotonic() - began,
    }  # fmt: skip
    for key, value in everything.items():
        print(f"{key}: {value}")
    if as_json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()

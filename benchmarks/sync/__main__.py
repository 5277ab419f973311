"""How soon does each policy reach a loss, and does anybody wait?

    python -m benchmarks.sync --quick --json

Three workers at 1 : 1.2 : 0.33 and 100 Mbit/s, each with Fashion-MNIST images of its own, on a testbed (needs root, see
docs/testbed.md, and `apt-get install dataset-fashion-mnist`). Targets are the losses that one process reaches after 1,
2 and 4 epochs. Flower takes part where `--flower` names a Python that has it (benchmarks/sync/flower.py).
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.sync.alone import losses_after
from benchmarks.sync.fashion import FashionMissing, write_shards
from benchmarks.sync.flower_run import flower_course
from benchmarks.sync.pairs import pairs_per_s
from benchmarks.sync.runs import Course, Lone, course, rate_of
from benchmarks.testbed import Testbed, TestbedMissing, check_machine, ended_by_signals
from benchmarks.throughput.__main__ import machine
from benchmarks.throughput.cells import FLEETS
from benchmarks.throughput.measure import say

POLICIES = ("bsp", "ssp", "local", "adacomm", "adsp", "ours")
NOBODY_WAITS = ("adsp", "ours")
FLOWER = "flower"
EPOCHS = (1, 2, 4)
RATES = (0.05, 0.1, 0.2)  # of a full run; a quick one takes the middle one for everybody


def over(slow: list[float | None], fast: list[float | None], most_s: float) -> float | None:
    """The median over targets of how much sooner; where the slow one never got there, at least as long as it had."""
    ratios = [(s if s is not None else most_s) / f for s, f in zip(slow, fast, strict=True) if f]
    return statistics.median(ratios) if ratios else None


def best(seconds: dict[str, list[float | None]], names: tuple[str, ...]) -> list[float | None]:
    """The soonest of some policies at each target."""
    rows = [seconds[name] for name in names if name in seconds]
    return [min((s for s in column if s is not None), default=None) for column in zip(*rows, strict=True)]


@click.command()
@click.option("--quick", is_flag=True, help="One seed, one learning rate, 24,000 images.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Of a full run.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES), help="Only these; may be repeated.")
@click.option("--dirichlet", type=float, help="Unequal shards: each label by parts from this distribution.")
@click.option("--fleet", default="three-100", show_default=True, help="Of benchmarks/fleets.")
@click.option("--most-s", type=float, help="Longest run of a policy.  [default: 130, 600 in a full run]")
@click.option("--flower", type=click.Path(path_type=Path, exists=True), help="A Python with flwr.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for the figures.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(
    quick: bool, seeds: int, policies: tuple[str, ...], dirichlet: float | None, fleet: str, most_s: float | None,
    flower: Path | None, results: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Races policies. Example: python -m benchmarks.sync --quick --policy ours --policy bsp"""
    ended_by_signals()
    try:
        check_machine()
        found = _race(
            policies or POLICIES, quick, 1 if quick else seeds, dirichlet, fleet,
            most_s or (130.0 if quick else 600.0), flower,
        )  # fmt: skip
    except (TestbedMissing, FashionMissing) as error:
        raise click.ClickException(str(error)) from None
    for key, value in found.items():
        if key != "curves":
            print(f"{key}: {value}")
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        word = "sync-quick" if quick else "sync"
        name = f"{word}-{fleet}" + (f"-dirichlet-{dirichlet:g}" if dirichlet else "")
        (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    if as_json:
        print(json.dumps(found))


def _race(
    policies: tuple[str, ...], quick: bool, seeds: int, dirichlet: float | None, fleet: str, most_s: float,
    flower: Path | None,
) -> dict[str, Any]:  # fmt: skip
    torch.set_num_threads(1)
    began, samples = time.monotonic(), 24_000 if quick else 60_000
    rates = RATES[1:2] if quick else RATES
    runs: dict[str, list[Course]] = {}
    with tempfile.TemporaryDirectory() as name, Testbed(FLEETS / f"{fleet}.toml") as bed:
        folder = Path(name)
        write_shards(folder, bed.devices, samples, dirichlet, seed=0)
        by_rate = [losses_after(EPOCHS, samples, rate, 0, folder / "test.npz") for rate in rates]
        targets = min(by_rate, key=lambda losses: losses[-1])
        say(f"one process reaches {targets} after {EPOCHS} epochs")
        yardstick = Lone(bed, folder)
        for seed in range(seeds):
            for policy in (*policies, *((FLOWER,) if flower is not None else ())):
                tried = []
                if policy in NOBODY_WAITS:
                    yardstick.before()
                for rate in rates:
                    where = folder / f"{policy}-{seed}-{rate}"
                    if policy == FLOWER and flower is not None:
                        one = flower_course(bed, flower, folder, where, targets, rate=rate, seed=seed, most_s=most_s)
                    else:
                        one = course(bed, policy, folder, where, targets, rate=rate, seed=seed, most_s=most_s)
                    say(
                        f"{policy} ({rate}): {one.reached_s} s, {one.pushes} pushes, {rate_of(one):.0f} samples/s, "
                        f"busy {one.busy:.2f} {one.problem}"
                    )
                    tried.append(one)
                    if policy in NOBODY_WAITS:
                        yardstick.after(policy, rate_of(one))
                runs.setdefault(policy, []).append(min(tried, key=lambda c: _last(c, most_s)))
    seconds = {policy: _medians([c.reached_s for c in courses]) for policy, courses in runs.items()}
    mine = best(seconds, NOBODY_WAITS)
    local = best(seconds, ("local", "adacomm"))
    served = pairs_per_s()
    return {
        "quick": quick, "targets": targets, "seconds": seconds, "most_s": most_s,
        "spread": {p: [[c.reached_s[i] for c in courses] for i in range(len(EPOCHS))] for p, courses in runs.items()},
        "busy": {p: statistics.median(c.busy for c in courses) for p, courses in runs.items() if p != FLOWER},
        "samples_per_s": {p: statistics.median(map(rate_of, courses)) for p, courses in runs.items() if p != FLOWER},
        "lone_samples_per_s": yardstick.rates,
        "rate_over_lone": max(map(statistics.median, yardstick.parts.values()), default=0.0),
        "rates_over_lone": yardstick.parts,
        "best_over_local": over(local, mine, most_s) if local else None,
        "best_over_bsp": over(seconds["bsp"], mine, most_s) if "bsp" in seconds else None,
        "best_over_flower": over(seconds[FLOWER], mine, most_s) if FLOWER in seconds else None,
        "pushes": {p: [c.pushes for c in courses] for p, courses in runs.items()},
        "pushes_lost": sum(c.lost for courses in runs.values() for c in courses),
        "pushes_doubled": sum(c.doubled for courses in runs.values() for c in courses),
        "server_pairs_per_s": served["pairs_per_s"], "server": served,
        "problems": {p: [c.problem for c in courses if c.problem] for p, courses in runs.items()},
        "curves": {p: courses[0].curve for p, courses in runs.items()},
        "machine": machine(), "duration_s": time.monotonic() - began,
    }  # fmt: skip


def _last(one: Course, most_s: float) -> float:
    last = one.reached_s[-1] if one.reached_s else None
    return last if last is not None else most_s + min((loss for _, loss in one.curve), default=1e9)


def _medians(columns: list[list[float | None]]) -> list[float | None]:
    found: list[float | None] = []
    for column in zip(*columns, strict=True):
        known = [s for s in column if s is not None]
        found.append(statistics.median(known) if len(known) == len(column) else None)
    return found


if __name__ == "__main__":
    main()

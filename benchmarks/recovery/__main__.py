"""Does it survive, how soon does it go on, and is anything lost?

    python -m benchmarks.recovery --quick --json

Devices of the fleet `lab` at 100 Mbit/s, and their coordinator, are killed, frozen, cut off, sent away and added while
they train; every run is compared with one in which nothing happened. A quick run has the scenarios that
decide, or with --no-compare all of them, as far as 15 minutes go; left_out: what they were not enough for.
Needs root (see docs/testbed.md).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click

from benchmarks.recovery.bench import Bench
from benchmarks.recovery.comparing import Comparison
from benchmarks.recovery.extent import FULL, QUICK
from benchmarks.recovery.scenarios import CNN, GPT, Scenario, scenarios
from benchmarks.recovery.tally import Tally, spread
from benchmarks.testbed import Testbed, TestbedMissing, check_machine, ended_by_signals
from benchmarks.throughput.cells import FLEETS
from benchmarks.throughput.machine import machine
from benchmarks.time_limit import QUICK_S, TimeLimit


def planned(quick: bool, seeds: int, models: tuple[str, ...], few: bool) -> Iterator[tuple[Scenario, int]]:
    """Scenarios and seeds; all of them, or the few that decide."""
    for scenario in scenarios(quick):
        if (not models or scenario.model in models) and (scenario.decides or not few):
            for seed in range(1 if quick else seeds):
                yield scenario, seed


def lost(tally: Tally) -> dict[str, Any]:
    """What the scenarios came to."""
    closed, silent = tally.detect_s["closed"], tally.detect_s["silent"]
    return {
        "scenarios": tally.ran, "failed": tally.failed, "samples_lost": tally.lost,
        "samples_doubled": tally.doubled, "equal": tally.differences, "detect_s": spread([*closed, *silent]),
        "detect_closed_s": spread(closed), "detect_silent_s": spread(silent),
        "switch_s": spread(tally.switch_s), "rounds_replayed": tally.replayed,
        "recover_rounds": spread(chain(*tally.recover_rounds.values())),
        "recover_rounds_each": tally.recover_rounds,
    }  # fmt: skip


def told(everything: dict[str, Any], file: Path | None, picture: str) -> None:
    """Prints figures, and keeps them in a file, if there is one."""
    for key, value in everything.items():
        print(f"{key}: {value}")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(everything, indent=1) + "\n")
        if picture:
            file.with_suffix(".svg").write_text(picture)


@click.command()
@click.option("--quick", is_flag=True, help="What decides, once: at most 15 minutes.")
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="Of a full run: how often each.")
@click.option("--model", "models", multiple=True, type=click.Choice([GPT, CNN]), help="Only these; may be repeated.")
@click.option(
    "--scenarios/--no-scenarios",
    "with_losses",
    default=True,
    help="Whether to lose devices in every way; without, figures are added to those that the folder has.",
)
@click.option(
    "--compare/--no-compare",
    "with_others",
    default=True,
    help="Whether to run the baselines; without, a quick run has all scenarios.",
)
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and picture.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(
    quick: bool, seeds: int, models: tuple[str, ...], with_losses: bool, with_others: bool, results: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Loses devices. Example: python -m benchmarks.recovery --quick --model small_gpt --no-compare"""
    ended_by_signals()
    try:
        check_machine()
    except TestbedMissing as error:
        raise click.ClickException(str(error)) from None
    limit, extent = TimeLimit(QUICK_S if quick else None), QUICK if quick else FULL
    tally, began, picture, others = Tally(), time.monotonic(), "", dict[str, Any]()
    with tempfile.TemporaryDirectory() as name, Testbed(FLEETS / "lab-100.toml") as bed:
        bench = Bench(bed, Path(name), limit)
        if with_others:
            others, picture = Comparison(bench, extent).run()
        overhead = bench.protections(extent, models)
        if with_losses:
            few = quick and with_others and not models
            bench.survive(tally, planned(quick, seeds, models, few))
    file = None if results is None else results / f"{'recovery-quick' if quick else 'recovery'}.json"
    known = {} if with_losses or file is None or not file.exists() else json.loads(file.read_text())
    everything = {
        **known, "quick": quick, **(lost(tally) if with_losses else {}),
        "protection_overhead": {**known.get("protection_overhead", {}), **overhead}, **others,
        "machine": machine(), "seconds": known.get("seconds", 0.0) + time.monotonic() - began, **limit.figures,
    }  # fmt: skip
    told(everything, file, picture)
    if limit.words:
        print(limit.words)
    if as_json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()

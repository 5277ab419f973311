"""Rounds that overlap beside our own lock-step: the same model, batch and fleet, in one run.

    sudo .venv/bin/python -m benchmarks.adapt --quick --json

async_over_sync: rounds an hour with gradients one step late over those of lock-step, each with its best plan.
steady_share: the part of a round that the plan's busiest device or line is busy. left_out: cells for which the 15
minutes of a quick run were not enough. Needs root (see docs/testbed.md).
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.testbed import Testbed, ended_by_signals
from benchmarks.throughput.cells import FLEETS, Cell
from benchmarks.throughput.machine import check_fleets, check_here, commit, machine
from benchmarks.throughput.measure import say
from benchmarks.throughput.session import Ours
from benchmarks.time_limit import QUICK_S, TimeLimit
from benchmarks.workloads import WORKLOADS

WORKER = "benchmarks.adapt.rounds"
TIMEOUT_S = 1800.0
QUICK = (Cell("lab-100", "mobilenet_v2"), Cell("lab-100", "resnet50"), Cell("rooms", "mobilenet_v2"))
FULL = (*QUICK, *(Cell(f, m) for f in ("lab-1000", "tenfold-100", "nanos-100") for m in ("mobilenet_v2", "resnet50")))
CELL_S = 230.0  # what a cell usually takes: devices join, are measured, two plans a bound are tried
LOOK_S, LOOKS, TRIES = 8.0, 3, 2


def measured(cell: Cell, logs: Path) -> dict[str, Any]:
    """What each bound came to."""
    with Testbed(cell.fleet_file) as bed, Ours(bed, logs, WORKER) as ours:
        request = {"model": cell.model, "batch": cell.batch, "seconds": LOOK_S, "looks": LOOKS, "tries": TRIES}
        return ours.ask(request, TIMEOUT_S)


def summary(found: dict[Cell, dict[str, Any]]) -> dict[str, Any]:
    """The figures by fleet and model."""
    ratios: dict[str, dict[str, float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for cell, bounds in found.items():
        now, late = (statistics.median(bounds[b]["round_s"]) for b in ("0", "1"))
        ratios.setdefault(cell.fleet, {})[cell.model] = round(now / late, 3)
        shares.setdefault(cell.fleet, {})[cell.model] = round(bounds["1"]["share"], 3)
    return {"async_over_sync": ratios, "steady_share": shares}


def table(found: dict[Cell, dict[str, Any]]) -> str:
    """A line a cell and bound."""
    lines = [f"{'fleet':12} {'model':14} {'late':4} {'s a round':>22} {'planned':>8} {'busiest':>8}  plan"]
    for cell, bounds in found.items():
        for late, one in bounds.items():
            looks = " ".join(f"{s:.3f}" for s in one["round_s"])
            lines.append(
                f"{cell.fleet:12} {cell.model:14} {late:4} {looks:>22} {one['predicted_s']:8.3f} {one['share']:8.2f}  "
                f"{one['plan']}"
            )
    return "\n".join(lines)


def _named(word: str) -> Cell:
    fleet, _, model = word.partition(":")
    if not (FLEETS / f"{fleet}.toml").is_file() or model not in WORKLOADS:
        like = f"{QUICK[0].fleet}:{QUICK[0].model}"
        raise click.UsageError(f"--only {word}: give FLEET:MODEL, like {like}; models: {', '.join(WORKLOADS)}")
    return Cell(fleet, model)


@click.command()
@click.option("--quick", is_flag=True, help="Three cells; at most 15 minutes.")
@click.option("--only", multiple=True, help="Only these cells: FLEET:MODEL; may be repeated.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for the figures.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(quick: bool, only: tuple[str, ...], results: Path | None, as_json: bool) -> None:
    """Measures overlapping rounds beside lock-step.

    Example: sudo .venv/bin/python -m benchmarks.adapt --quick --json
    """
    ended_by_signals()
    check_here()
    cells = tuple(map(_named, only)) or (QUICK if quick else FULL)
    check_fleets(cells)
    limit, found = TimeLimit(QUICK_S if quick else None), dict[Cell, dict[str, Any]]()
    logs = Path(tempfile.mkdtemp(prefix="potluck-adapt-"))
    say(f"logs: {logs} (removed if nothing fails)")
    for cell in cells:
        one = limit.within(cell.word, CELL_S, partial(measured, cell, logs / cell.word))
        if one is not None:
            found[cell] = one
    shutil.rmtree(logs, ignore_errors=True)
    print(table(found))
    if limit.words:
        print(limit.words)
    figures = {**summary(found), **limit.figures}
    kept = {**figures, "machine": machine(), "commit": commit(), "cells": {c.word: f for c, f in found.items()}}
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        (results / "adapt-quick.json").write_text(json.dumps(kept, indent=1) + "\n")
    if as_json:
        print(json.dumps({"quick": quick, **figures}))


if __name__ == "__main__":
    main()

"""How fast is it, beside what people use today, on the same throttled devices?

    python -m benchmarks.throughput --quick --json

cells: samples/s of every system. ideal: the sum of plain trainers, one in each device, all at once. efficiency: ours
over that. best_peer_ratio: ours over the best of all others. ddp_ratio: ours over PyTorch's DDP. Needs root (see
docs/testbed.md).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.testbed import TestbedMissing, check_machine, ended_by_signals
from benchmarks.testbed.agents import environment
from benchmarks.throughput.cells import FLEETS, FULL, LEAST_BATCH, PEERS, PLANNERS, QUICK, Bench, Cell
from benchmarks.throughput.kept import Kept, Measured, summary
from benchmarks.throughput.measure import run, say
from benchmarks.throughput.report import table
from benchmarks.workloads import WORKLOADS


def machine() -> dict[str, Any]:
    """Where this was measured."""
    return {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
            "torch": str(torch.__version__), "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def commit() -> str:
    """Which code this is; "" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def transport_cost() -> tuple[float, float]:
    """CPU seconds for each GB moved, by our link and by Gloo."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers.gloo_cost", "--json", "--megabytes", "400"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["cpu_s_per_gb"]), float(found["gloo_cpu_s_per_gb"])


def chosen(bench: Bench, only: tuple[str, ...], beside: tuple[str, ...], repeats: int | None) -> Bench:
    """The benchmark with only the cells named FLEET, FLEET:MODEL or FLEET/BATCH:MODEL, and only these beside ours."""
    named = dict.fromkeys(cell for word in only for cell in _cells(bench, word))
    cells = tuple(named) if only else bench.cells
    if beside:
        peers, planners = (tuple(s for s in every if s in beside) for every in (PEERS, PLANNERS))
        bench = replace(bench, peers=peers, planners=planners)
    return replace(bench, cells=cells, repeats=repeats or bench.repeats)


def _cells(bench: Bench, word: str) -> tuple[Cell, ...]:
    place, _, model = word.partition(":")
    fleet, slash, batch = place.partition("/")
    fleets = sorted(file.stem for file in FLEETS.glob("*.toml"))
    if fleet not in fleets:
        raise click.UsageError(f"--only {word}: no fleet {fleet!r}; give one of {', '.join(fleets)}")
    if ":" in word:
        if model not in WORKLOADS:
            raise click.UsageError(f"--only {word}: no model {model!r}; give one of {', '.join(WORKLOADS)}")
        if slash and not (batch.isdecimal() and int(batch) and int(batch) % LEAST_BATCH == 0):
            raise click.UsageError(
                f"--only {word}: give a batch of a multiple of {LEAST_BATCH}, like {fleet}/120:{model}"
            )
        return (Cell(fleet, model, int(batch)) if slash else Cell(fleet, model),)
    found = tuple(cell for cell in bench.cells if cell.name == place)
    if not found:
        raise click.UsageError(f"--only {word}: nothing is measured there by itself; name a model: {fleet}:MODEL")
    return found


@click.command()
@click.option("--quick", is_flag=True, help="Two fleets, two models, four rivals, once each: some 24 minutes.")
@click.option(
    "--only", multiple=True, help="Only these cells: FLEET, FLEET:MODEL or FLEET/BATCH:MODEL; may be repeated."
)
@click.option(
    "--beside",
    multiple=True,
    type=click.Choice([*PEERS, *PLANNERS]),
    help="Only this beside ours; may be repeated.",
)
@click.option("--repeats", type=click.IntRange(1), help="Measure everything so often.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and chart.")
@click.option("--add", is_flag=True, help="Keep the other cells that the folder has already.")
@click.option("--again", is_flag=True, help="Keep also what it has of these cells, measured with the same code.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(
    quick: bool, only: tuple[str, ...], beside: tuple[str, ...], repeats: int | None, results: Path | None, add: bool,
    again: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measures throughput. Example: python -m benchmarks.throughput --only lab-1000:resnet50 --repeats 1"""
    add = add or again
    if add and results is None:
        raise click.UsageError("--add and --again need --results: the folder that has what was measured before")
    bench = chosen(QUICK if quick else FULL, only, beside, repeats)
    ended_by_signals()
    try:
        check_machine()
    except TestbedMissing as error:
        raise click.ClickException(str(error)) from None
    keep = None if results is None else Kept(results, "throughput-quick" if quick else "throughput")
    known = keep.read() if keep is not None and add else Measured()
    began = time.monotonic() - known.seconds
    ours, gloo = transport_cost()
    found = replace(known, machine=machine(), cpu_s_per_gb=ours, gloo_cpu_s_per_gb=gloo)
    logs = Path(tempfile.mkdtemp(prefix="potluck-throughput-"))
    say(f"what devices say is in {logs}, unless nothing fails")
    when = f"{time.strftime('%Y-%m-%d')} {commit()}"
    for cells in run(bench, logs, when, known.cells, again):
        found = replace(found, cells=cells, seconds=time.monotonic() - began)
        if keep is not None:
            keep.write(found)
            say(f"kept in {results}")
    if not any(result.errors for result in found.cells):
        shutil.rmtree(logs)
    print(table(found.cells))
    if as_json:
        print(json.dumps({"quick": quick, **summary(found)}))


if __name__ == "__main__":
    main()

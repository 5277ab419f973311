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
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.testbed import TestbedMissing, check_machine
from benchmarks.testbed.agents import environment
from benchmarks.throughput.cells import FULL, QUICK, Bench, Cell
from benchmarks.throughput.measure import run, say
from benchmarks.throughput.report import chart, figures, table


def machine() -> dict[str, Any]:
    """Where this was measured."""
    return {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
            "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def transport_cost() -> dict[str, float]:
    """CPU seconds for each GB moved, by our link and by Gloo."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers.gloo_cost", "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: float(found[name]) for name in ("cpu_s_per_gb", "gloo_cpu_s_per_gb")}


def chosen(bench: Bench, only: tuple[str, ...], repeats: int | None) -> Bench:
    """The benchmark with only the cells named FLEET or FLEET:MODEL."""
    cells = bench.cells
    if only:
        pairs = [word.partition(":") for word in only if ":" in word]
        cells = tuple(Cell(fleet, model) for fleet, _, model in pairs)
        cells += tuple(c for c in bench.cells if c.fleet in only)
    return replace(bench, cells=cells, repeats=repeats or bench.repeats)


@click.command()
@click.option("--quick", is_flag=True, help="Two fleets, two models, four rivals, once each: 40 minutes.")
@click.option("--only", multiple=True, help="Only these cells: FLEET or FLEET:MODEL; may be repeated.")
@click.option("--repeats", type=click.IntRange(1), help="Measure everything so often.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and chart.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(quick: bool, only: tuple[str, ...], repeats: int | None, results: Path | None, as_json: bool) -> None:
    """Measures throughput."""
    began = time.monotonic()
    try:
        check_machine()
    except TestbedMissing as error:
        raise click.ClickException(str(error)) from None
    with tempfile.TemporaryDirectory() as logs:
        found = run(chosen(QUICK if quick else FULL, only, repeats), Path(logs))
    everything = {
        "quick": quick, **figures(found), **transport_cost(), "machine": machine(), "seconds": time.monotonic() - began
    }  # fmt: skip
    print(table(found))
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        name = "throughput-quick" if quick else "throughput"
        (results / f"{name}.json").write_text(json.dumps(everything, indent=1) + "\n")
        (results / f"{name}.svg").write_text(chart(found))
        say(f"kept in {results}")
    if as_json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()

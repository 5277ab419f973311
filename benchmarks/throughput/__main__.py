"""How fast is it, beside what people use today, on the same throttled devices?

    sudo .venv/bin/python -m benchmarks.throughput --quick --json

cells: samples/s of every system. ideal: the sum of plain trainers, one in each device, all at once. efficiency: ours
over that. best_peer_ratio: ours over the best of all others. ddp_ratio: ours over PyTorch's DDP. left_out: cells
for which the 15 minutes of a quick run were not enough. Needs root (see docs/testbed.md).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.testbed import ended_by_signals
from benchmarks.throughput.cells import FLEETS, FULL, LEAST_BATCH, PEERS, PLANNERS, QUICK, Bench, Cell
from benchmarks.throughput.kept import Kept, Measured, summary
from benchmarks.throughput.machine import check_fleets, check_here, commit, machine, transport_cost
from benchmarks.throughput.measure import run, say
from benchmarks.throughput.report import table
from benchmarks.time_limit import QUICK_S, TimeLimit
from benchmarks.workloads import WORKLOADS

QUICK_HELP = "Two fleets, two models, DDP and Asteroid, once each: at most 15 minutes."
KNOWN_FLEETS = sorted(file.stem for file in FLEETS.glob("*.toml"))


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
    if fleet not in KNOWN_FLEETS:
        raise click.UsageError(f"--only {word}: no fleet {fleet!r}; give one of {', '.join(KNOWN_FLEETS)}")
    if slash and not (batch.isdecimal() and int(batch) and int(batch) % LEAST_BATCH == 0):
        like = f"{fleet}/{LEAST_BATCH}:{model or 'MODEL'}"
        raise click.UsageError(f"--only {word}: give a batch of a multiple of {LEAST_BATCH}, like {like}")
    if ":" in word:
        if model not in WORKLOADS:
            raise click.UsageError(f"--only {word}: no model {model!r}; give one of {', '.join(WORKLOADS)}")
        return (Cell(fleet, model, int(batch)) if slash else Cell(fleet, model),)
    found = tuple(cell for cell in bench.cells if cell.name == place)
    if not found:
        raise click.UsageError(f"--only {word}: nothing is measured there by itself; name a model: {fleet}:MODEL")
    return found


@click.command()
@click.option("--quick", is_flag=True, help=QUICK_HELP)
@click.option(
    "--only",
    multiple=True,
    help="Only these cells: FLEET, FLEET:MODEL or FLEET/BATCH:MODEL; may be repeated. "
    f"Fleets: {', '.join(KNOWN_FLEETS)}. Models: {', '.join(WORKLOADS)}.",
)
@click.option(
    "--beside",
    multiple=True,
    type=click.Choice([*PEERS, *PLANNERS]),
    help="Only this beside ours; may be repeated. ddp, pipelining-*: PyTorch's own programs; the others: their plans "
    "on our runtime.",
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
    """Measures throughput. Without --quick or --only it takes days.

    Example: sudo .venv/bin/python -m benchmarks.throughput --quick --json
    """
    if (add or again) and results is None:
        raise click.UsageError("--add and --again need --results: the folder that has what was measured before")
    bench = chosen(QUICK if quick else FULL, only, beside, repeats)
    ended_by_signals()
    check_here()
    check_fleets(bench.cells)
    code = commit()
    keep = None if results is None else Kept(results, "throughput-quick" if quick else "throughput")
    known = Measured() if keep is None else keep.begin(bench.cells, code, add=add, again=again)
    began, limit = time.monotonic() - known.seconds, TimeLimit(QUICK_S if quick else None)
    ours, gloo = transport_cost()
    found = replace(known, machine=machine(), cpu_s_per_gb=ours, gloo_cpu_s_per_gb=gloo, **limit.figures)
    logs = Path(tempfile.mkdtemp(prefix="potluck-throughput-"))
    say(f"logs: {logs} (removed if nothing fails)")
    when = f"{time.strftime('%Y-%m-%d')} {code}"
    try:
        for cells in run(bench, logs, when, known.cells, again, limit):
            found = replace(found, cells=cells, seconds=time.monotonic() - began)
            if keep is not None:
                keep.write(found)
                say(f"kept in {results}")
    except BaseException:
        if not any(logs.iterdir()):
            logs.rmdir()
        raise
    if not any(result.errors for result in found.cells):
        shutil.rmtree(logs, ignore_errors=True)
    print(table(found.cells, limit.left_out))
    if limit.words:
        print(limit.words)
    if as_json:
        print(json.dumps({"quick": quick, **summary(found)}))


if __name__ == "__main__":
    main()

"""What are our choices of kernels worth on this processor?

    python -m benchmarks.kernels --json

A whole model on one core, by the program that devices run: once with the kernels that PyTorch takes by itself
(kernels="torch" in a job), once with ours. Both take turns; samples per CPU second of forward and backward.
"""

from __future__ import annotations

import json
import statistics
import time

import click
import torch

from benchmarks.throughput.machine import machine
from benchmarks.workloads import WORKLOADS, workload
from potluck.coordinator.samples.loading import first_samples
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.device.measure.bench import Bench, Rig
from potluck.program.carve import Carver

ROWS = {"mobilenet_v2": 60, "resnet50": 60, "efficientnet_b1": 40, "bert_small": 16, "gpt_10m": 8}
BATCH = 240
TURNS, TURN_S = 5, 1.0
BOTH: tuple[str, ...] = ("torch", "quick")


def bench(prepared: PreparedJob, kernels: str) -> Bench:
    """The whole model on one core."""
    programs = prepared.built.programs.with_kernels(kernels)
    carvers = (Carver(programs.train), Carver(programs.eval))
    samples = first_samples(prepared.job, 2).feeds
    rig = Rig(programs, carvers, prepared.optimizer, samples, torch.device("cpu"), 1.0)
    return Bench(rig, (0, programs.train.block_count))


def samples_per_s(one: Bench, rows: int) -> float:
    """Samples per CPU second of forward and backward."""
    started, done = time.process_time(), 0
    while not done or time.process_time() - started < TURN_S:
        one.chunk(rows, 1)
        done += rows
    return done / (time.process_time() - started)


def measure(model: str) -> dict[str, float]:
    """Samples per CPU second with PyTorch's kernels and with ours, and how many times as fast ours are."""
    rows = ROWS[model]
    prepared = prepare_job(workload(model, 1, BATCH, rows).job)
    benches = {kernels: bench(prepared, kernels) for kernels in BOTH}
    for one in benches.values():
        for _ in range(2):
            one.chunk(rows, 1)  # the first meet memory that nobody has touched
    found: dict[str, list[float]] = {kernels: [] for kernels in BOTH}
    for _ in range(TURNS):
        for kernels in BOTH:
            found[kernels].append(samples_per_s(benches[kernels], rows))
    rates: dict[str, float] = {kernels: statistics.median(some) for kernels, some in found.items()}
    ratios = [quick / plain for plain, quick in zip(found["torch"], found["quick"], strict=True)]
    return {**rates, "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(list(WORKLOADS)),
    help="May be repeated; all of them if not given.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(models: tuple[str, ...], as_json: bool) -> None:
    """Measures kernels on one core; takes a minute or two.

    Example: python -m benchmarks.kernels --model resnet50 --json
    """
    torch.set_num_threads(1)
    found = {}
    print("| model | rows | samples per CPU second, PyTorch's kernels | ours | times as fast |\n|---|---|---|---|---|")
    for model in models or tuple(ROWS):
        one = found[model] = measure(model)
        spread = f"{one['ratio']:.2f} ({one['least']:.2f} to {one['most']:.2f})"
        print(f"| {model} | {ROWS[model]} | {one['torch']:.1f} | {one['quick']:.1f} | {spread} |", flush=True)
    if as_json:
        print(json.dumps({"kernels": found, "machine": machine()}))


if __name__ == "__main__":
    main()

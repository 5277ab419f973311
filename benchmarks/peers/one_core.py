"""How fast a plain trainer is on a whole core, by the size of its micro-batches and the order of images in memory.

    python -m benchmarks.peers.one_core --model resnet50

Prints one JSON object: the order, then the size, then samples per CPU second of forward and backward passes. All
devices of a testbed have the same kind of core, so what is fastest here is fastest there.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time

import click
import torch

from benchmarks.peers.accumulate import Task
from benchmarks.peers.memory_order import IMAGES, arranged
from benchmarks.workloads import BATCH, WORKLOADS, plain, samples

USUAL, CHANNELS_LAST = "usual", "channels_last"
ORDERS = {USUAL: torch.contiguous_format, CHANNELS_LAST: torch.channels_last}
SIZES = (8, 16, 24, 40, 60, 120)
TURNS, TURN_S = 5, 0.25
LEAST_TURNS, MOST_S = 2, 15.0  # of a large model, whose passes take seconds


def measure(model: str, batch: int) -> dict[str, dict[int, float]]:
    """Samples per CPU second at each size, in each order that the model's inputs can have.

    A machine that others share is slow for a second now and then: sizes take turns, and the middle one counts.
    """
    case = plain(model)
    inputs, labels = samples(case, batch)
    orders = ORDERS if inputs.dim() == IMAGES else {USUAL: torch.contiguous_format}
    sizes = [size for size in SIZES if batch % size == 0]
    tasks = {name: Task(case.make_model(), case.loss, arranged(inputs, o), labels) for name, o in orders.items()}
    found: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in tasks}
    for name, size in itertools.product(tasks, sizes):
        tasks[name].backward(slice(0, size), 1.0)  # the first of a size is slow
    started = time.monotonic()
    for turn in range(TURNS):
        if turn >= LEAST_TURNS and time.monotonic() - started > MOST_S:
            break
        for name, size in itertools.product(tasks, sizes):
            found[name][size].append(_rate(tasks[name], size))
    return {name: {size: statistics.median(some) for size, some in rates.items()} for name, rates in found.items()}


def _rate(task: Task, size: int) -> float:
    started, trained = time.process_time(), 0
    while not trained or time.process_time() - started < TURN_S:
        task.backward(slice(0, size), 1.0)
        trained += size
    return trained / (time.process_time() - started)


@click.command()
@click.option("--model", type=click.Choice(list(WORKLOADS)), default="mobilenet_v2", show_default=True)
@click.option("--batch", default=BATCH, show_default=True, help="Sizes that do not divide it are left out.")
def main(model: str, batch: int) -> None:
    """Measure a plain trainer on one core."""
    torch.set_num_threads(1)
    print(json.dumps(measure(model, batch)), flush=True)


if __name__ == "__main__":
    main()

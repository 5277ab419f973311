"""What do gradients that are one step late cost, with which optimizer?

    python -m benchmarks.delay --json

Two jobs are trained uncut in one process, in lock-step and one step late (schedule "steady"), over several seeds: the
digits of `potluck demo` by epochs, and the small language model of examples/stdlib_lm.py. Each optimizer has a
learning rate that is near the best for it in lock-step (some a factor of three apart were tried), and keeps it.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

import potluck
from benchmarks.throughput.machine import machine
from potluck.commands.demo_job import job as demo_job
from potluck.coordinator.samples.loading import Batch, training_loader
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.serving.whole_evaluation import WholeEvaluation
from potluck.job.job import Job, load_job
from potluck.job.learning_rates import multiplier
from potluck.job.optimizers import Optimizer
from potluck.plan.routes import micro_batch_sizes
from potluck.uncut.uncut_run import UncutRun

TEXT_JOB = Path(__file__).resolve().parents[1] / "examples" / "stdlib_lm.py"
SEEDS = (0, 1, 2)
TEXT_ROUNDS = 100

ADAMW, CORRECTED = (potluck.AdamW(lr=3e-3, weight_decay=0.01, feedback=feedback) for feedback in (0.0, 1.0))

OPTIMIZERS: dict[str, dict[str, Optimizer]] = {
    "digits": {
        "SGD": potluck.SGD(lr=0.1),
        "SGD, momentum 0.9": potluck.SGD(lr=0.03, momentum=0.9),
        "SGD, momentum 0.9, feedback 1": potluck.SGD(lr=0.03, momentum=0.9, feedback=1.0),
        "SGD, Nesterov 0.9": potluck.SGD(lr=0.3, momentum=0.9, nesterov=True, discounted=True),
        "SGD, Nesterov 0.97": potluck.SGD(lr=1.0, momentum=0.97, nesterov=True, discounted=True),
        "RMSprop": potluck.RMSprop(lr=3e-3),
        "Adagrad": potluck.Adagrad(lr=3e-2),
        "Adam": potluck.Adam(lr=3e-3),
        "AdamW": ADAMW,
        "AdamW, feedback 1": CORRECTED,
        "NAdam": potluck.NAdam(lr=3e-3, weight_decay=0.01),
        "NAdam, beta1 0.99": potluck.NAdam(lr=3e-3, weight_decay=0.01, betas=(0.99, 0.999)),
        "NAdam, feedback 0.5": potluck.NAdam(lr=3e-3, weight_decay=0.01, feedback=0.5),
    },
    "text": {
        "RMSprop": potluck.RMSprop(lr=1e-3),
        "Adam": potluck.Adam(lr=3e-3),
        "AdamW": ADAMW,
        "AdamW, feedback 1": CORRECTED,
        "NAdam": potluck.NAdam(lr=3e-3, weight_decay=0.01),
        "NAdam, beta1 0.99": potluck.NAdam(lr=3e-3, weight_decay=0.01, betas=(0.99, 0.999)),
        "NAdam, feedback 0.5": potluck.NAdam(lr=3e-3, weight_decay=0.01, feedback=0.5),
        "Muon": potluck.Muon(lr=0.02, rest=ADAMW),
        "Muon, feedback 1": potluck.Muon(lr=0.02, feedback=1.0, rest=CORRECTED),
    },
}


def jobs() -> dict[str, Job]:
    """What is trained, without its optimizer; the schedule of the text's ends with its rounds."""
    text = dataclasses.replace(
        load_job(TEXT_JOB), rounds=TEXT_ROUNDS, eval_every=None,
        schedule=potluck.Cosine(total=TEXT_ROUNDS, warmup=10, floor=0.1),
    )  # fmt: skip
    return {"digits": demo_job, "text": text}


def variant(job: Job, optimizer: Optimizer, seed: int) -> Job:
    """The job with another optimizer and seed; a micro-batch is a whole batch, which computes the same quicker."""
    return dataclasses.replace(job, optimizer=optimizer, seed=seed, micro_batch_size=job.batch_size)


def trained(job: Job, staleness: int) -> dict[str, float]:
    """Evaluation loss and metrics after the job's rounds in this process, with gradients so many steps late."""
    prepared = prepare_job(job)
    state = {name: tensor.clone() for name, tensor in prepared.built.state.items()}
    run = UncutRun(
        prepared.built.programs, state, prepared.optimizer, seed=job.seed, clip_norm=job.clip_norm,
        staleness=staleness,
    )  # fmt: skip
    loader = training_loader(job)
    try:
        for round in range(loader.order.rounds):
            run.round(round, list(micro_batches(loader.get(round), job.micro_batch)), multiplier(job.schedule, round))
    finally:
        loader.close()
    judge = WholeEvaluation(prepared)
    try:
        loss, metrics, _ = judge.run(run.stage.parameters)
    finally:
        judge.close()
    return {"loss": loss, **metrics}


def micro_batches(batch: Batch, size: int) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """A round's samples, piece by piece."""
    start = 0
    for count in micro_batch_sizes(len(batch.ids), size):
        rows = slice(start, start + count)
        yield {name: tensor[rows] for name, tensor in batch.feeds.items()}, batch.weights[rows]
        start += count


def compared(job: Job, optimizer: Optimizer, seeds: Sequence[int]) -> dict[str, Any]:
    """Means over the seeds in lock-step and one step late, and by how much the loss is worse, each seed by itself."""
    pairs = [[trained(variant(job, optimizer, seed), late) for late in (0, 1)] for seed in seeds]
    gaps = [late["loss"] - lock["loss"] for lock, late in pairs]
    return {
        "lock_step": mean([lock for lock, _ in pairs]),
        "one_late": mean([late for _, late in pairs]),
        "gap": statistics.mean(gaps),
        "least": min(gaps),
        "most": max(gaps),
        "lr": optimizer.lr,
    }


def mean(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.mean(one[name] for one in results) for name in results[0]}


def row(job: str, optimizer: str, found: Mapping[str, Any]) -> str:
    """A line of the table."""
    lock, late = found["lock_step"], found["one_late"]
    spread = f"{found['gap']:+.3f} ({found['least']:+.3f} to {found['most']:+.3f})"
    right = f"{lock['accuracy']:.1%} | {late['accuracy']:.1%}" if "accuracy" in lock else " | "
    return f"| {job} | {optimizer} | {lock['loss']:.3f} | {late['loss']:.3f} | {spread} | {right} |"


HEAD = """| job | optimizer | loss in lock-step | one step late | worse by (each seed) | accuracy in lock-step | late |
|---|---|---|---|---|---|---|"""


@click.command()
@click.option("--job", "chosen", multiple=True, type=click.Choice(list(OPTIMIZERS)), help="May be repeated; else all.")
@click.option("--quick", is_flag=True, help="One seed instead of three; takes four minutes.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(chosen: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Trains with gradients in time and one step late, on one core; takes twelve minutes.

    Example: python -m benchmarks.delay --quick --job text
    """
    torch.set_num_threads(1)
    seeds = SEEDS[:1] if quick else SEEDS
    found: dict[str, dict[str, Any]] = {}
    print(HEAD)
    for name, job in jobs().items():
        for rule, optimizer in OPTIMIZERS[name].items() if name in (chosen or OPTIMIZERS) else ():
            one = found.setdefault(name, {})[rule] = compared(job, optimizer, seeds)
            print(row(name, rule, one), flush=True)
    if as_json:
        print(json.dumps({"delay": found, "seeds": list(seeds), "text_rounds": TEXT_ROUNDS, "machine": machine()}))


if __name__ == "__main__":
    main()

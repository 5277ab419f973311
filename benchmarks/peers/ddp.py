"""PyTorch's DistributedDataParallel over Gloo: equal shares of the batch, gradients added up in overlapped buckets.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python -m benchmarks.peers.ddp --model resnet50
"""

from __future__ import annotations

import click
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.accumulate import Task, accumulate, fastest, pieces, share
from benchmarks.peers.memory_order import arranged
from benchmarks.peers.program import Rounds, Run, Watchdog, finish, run_options
from benchmarks.peers.ranks import Place, agreed, joined
from benchmarks.workloads import BATCHES, plain, samples, sgd

TRIAL_S = 2.0


@click.command()
@run_options("8,24,60,120")
def main(run: Run) -> None:
    """Train with DDP. Every rank is started with the same options, but for its own --out."""
    watchdog = Watchdog(run.timeout_s)
    case = plain(run.model)
    model = case.make_model().to(run.dtype)
    inputs, labels = samples(case, run.batch, run.dtype)
    inputs = arranged(inputs, run.order)
    with joined(run.timeout_s) as place:
        first, count = share(place.rank, place.world_size, run.batch)
        micro_batch = fastest(Task(model, case.loss, inputs, labels), run.micro_batches, count, TRIAL_S)
        task = Task(DistributedDataParallel(model), case.loss, inputs, labels)  # sends all weights to everybody
        run.await_start()
        watchdog.pat()
        dist.barrier()  # those that began sooner wait here, not in the first round
        _train(run, place, task, pieces(first, count, micro_batch), Rounds(run, watchdog))


def _train(run: Run, place: Place, task: Task, rows: list[slice], rounds: Rounds) -> None:
    replicated = task.model
    assert isinstance(replicated, DistributedDataParallel)
    optimizer = sgd(replicated)
    loss = 0.0
    for number in rounds.numbers(agreed):
        start = number % BATCHES * run.batch
        shifted = [slice(part.start + start, part.stop + start) for part in rows]
        optimizer.zero_grad()
        # DDP divides the sum of the gradients by the number of ranks; we want the mean over the samples.
        loss = accumulate(task, shifted, run.batch, float(place.world_size), replicated.no_sync)
        optimizer.step()
    outcome = rounds.outcome(
        "ddp", max(part.stop - part.start for part in rows),
        loss=loss, rank=place.rank, world_size=place.world_size,
    )  # fmt: skip
    finish(run, outcome, dict(replicated.module.named_parameters()))


if __name__ == "__main__":
    main()

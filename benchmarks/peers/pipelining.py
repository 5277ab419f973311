"""torch.distributed.pipelining over Gloo: one stage per rank, the layers split evenly, as its users do.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python -m benchmarks.peers.pipelining --schedule 1f1b

Micro-batches must divide the batch: uneven ones fail there. A weight used by the first and by the last stage is not
its business either: both stages hold a copy, and we add up their gradients.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import click
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from benchmarks.peers.layers import even_span, layers
from benchmarks.peers.memory_order import ChannelsLast
from benchmarks.peers.program import Rounds, Run, Watchdog, finish, run_options
from benchmarks.peers.ranks import Place, agreed, joined
from benchmarks.workloads import BATCHES, plain, samples, sgd
from tests.models.case import Case

TIED = "model.transformer.wte.weight"  # the only tied weight of the workloads
TRIALS_S, LEAST_SIZES = 60.0, 2  # in all; after that, no more sizes are tried
SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


@dataclass
class Stage:
    """This rank's layers, and what it takes to train them."""

    place: Place
    case: Case
    module: nn.Module
    parameters: dict[str, nn.Parameter]  # by their names in the whole model
    tied: nn.Parameter | None  # the copy of a weight that the first and the last stage both hold
    ends: dist.ProcessGroup | None  # those two

    def schedule(self, kind: str, batch: int, micro_batch: int) -> PipelineScheduleSingle:
        """A schedule with micro-batches of this size."""
        stage = PipelineStage(self.module, self.place.rank, self.place.world_size, torch.device("cpu"))
        return SCHEDULES[kind](stage, n_microbatches=batch // micro_batch, loss_fn=self.case.loss)

    def backward(self, schedule: PipelineScheduleSingle, inputs: Tensor, labels: Tensor) -> float | None:
        """Run all micro-batches of a batch forward and backward; the mean loss on the last rank."""
        first, last = self.place.rank == 0, self.place.rank == self.place.world_size - 1
        losses: list[Tensor] = []
        given = [inputs] if first else []
        schedule.step(*given, target=labels if last else None, losses=losses if last else None, return_outputs=False)
        if self.tied is not None and self.place.world_size > 1:
            dist.all_reduce(self.tied.grad, group=self.ends)
        return torch.stack(losses).mean().item() if last else None


def make_stage(run: Run, place: Place) -> Stage:
    """Build the model and keep this rank's share of its layers."""
    case = plain(run.model)
    model = case.make_model().to(run.dtype)
    every = layers(run.model, model)
    ends = dist.new_group([0, place.world_size - 1]) if case.tied else None  # all ranks must take part in making it
    module: nn.Module = nn.Sequential(*(every[i] for i in even_span(len(every), place.rank, place.world_size)))
    if run.channels_last:
        module = ChannelsLast(module)
    held = {id(p) for p in module.parameters()}
    parameters = {n: p for n, p in model.named_parameters() if id(p) in held}
    here = case.tied and place.rank in (0, place.world_size - 1)
    tied = dict(model.named_parameters())[TIED] if here else None
    return Stage(place, case, module, parameters, tied, ends)


def fastest(stage: Stage, kind: str, run: Run, inputs: Tensor, labels: Tensor) -> int:
    """The size of micro-batch whose second round is shortest, of those that this library can do; no weight changes.

    Where rounds take long, not all sizes are tried, in the order in which they were given.
    """
    least = stage.place.world_size  # micro-batches that 1F1B needs
    sizes = [s for s in run.micro_batches if run.batch % s == 0 and run.batch // s >= least]
    if not sizes:
        raise ValueError(f"no size of {run.micro_batches} divides {run.batch} into at least {least} micro-batches")
    if len(sizes) == 1:
        return sizes[0]
    seconds: dict[int, float] = {}
    began = time.perf_counter()
    for size in sizes:
        schedule = stage.schedule(kind, run.batch, size)
        for _ in range(2):
            started = time.perf_counter()
            stage.backward(schedule, inputs, labels)
            took = torch.tensor([time.perf_counter() - started, time.perf_counter() - began])
        dist.all_reduce(took)  # the ranks must agree
        seconds[size], trials_s = took.tolist()
        stage.module.zero_grad()
        if len(seconds) >= LEAST_SIZES and trials_s > TRIALS_S * stage.place.world_size:
            break
    return min(seconds, key=lambda size: seconds[size])


@click.command()
@run_options("8,24,40")
@click.option("--schedule", "kind", type=click.Choice(list(SCHEDULES)), default="1f1b", show_default=True)
def main(run: Run, kind: str) -> None:
    """Train with torch.distributed.pipelining. Every rank is started with the same options, but for its own --out."""
    watchdog = Watchdog(run.timeout_s)
    with joined(run.timeout_s) as place:
        stage = make_stage(run, place)
        inputs, labels = samples(stage.case, run.batch, run.dtype)
        run.await_start()
        watchdog.pat()
        micro_batch = fastest(stage, kind, run, inputs[: run.batch], labels[: run.batch])
        schedule = stage.schedule(kind, run.batch, micro_batch)
        optimizer = sgd(stage.module)
        dist.barrier()
        rounds, loss = Rounds(run, watchdog), None
        for number in rounds.numbers(agreed):
            rows = slice(number % BATCHES * run.batch, (number % BATCHES + 1) * run.batch)
            optimizer.zero_grad()
            loss = stage.backward(schedule, inputs[rows], labels[rows])
            optimizer.step()
        outcome = rounds.outcome(f"pipelining_{kind}", micro_batch, loss=loss, rank=place.rank,
                                 world_size=place.world_size)  # fmt: skip
        finish(run, outcome, stage.parameters)


if __name__ == "__main__":
    main()

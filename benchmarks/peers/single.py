"""A plain PyTorch trainer on one device. The sum over all devices, all at once, is what a perfect system would reach.

    python -m benchmarks.peers.single --model resnet50 --seconds 20 --ready-file ready --start-file start --out one.json

It finds its fastest micro-batch, warms up, makes the ready file, waits for the start file, and trains for `--seconds`.
With `--bursts`, it does so again and again: it waits for start.1, start.2 and so on, writes one.json.1, one.json.2, and
ends when there is a start.end. So it stands beside whatever is measured, as a yardstick for the machine of that minute.
A start file may hold the size of micro-batch to train with this time.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.peers.accumulate import Task, fastest, pieces
from benchmarks.peers.memory_order import arranged
from benchmarks.peers.program import Outcome, Run, Watchdog, finish, run_options
from benchmarks.workloads import BATCHES, plain, samples, sgd

BURST_LOOK_S = 0.2  # rarely: the wait is beside what others measure


@click.command()
@run_options("8,24,60,120")
@click.option("--seconds", default=20.0, show_default=True, help="How long to train.")
@click.option("--trial-s", default=2.0, show_default=True, help="How long to try each size of micro-batch.")
@click.option("--bursts", is_flag=True, help="Train whenever the next start file appears, until there is one to end.")
def main(run: Run, seconds: float, trial_s: float, bursts: bool) -> None:
    """Train on one device for a while, or, with --seconds 0, for --rounds."""
    watchdog = Watchdog(run.timeout_s + seconds)
    case = plain(run.model)
    inputs, labels = samples(case, run.batch, run.dtype)
    task = Task(case.make_model().to(run.dtype), case.loss, arranged(inputs, run.order), labels)
    micro_batch = fastest(task, run.micro_batches, run.batch, trial_s)
    watchdog.pat()
    if bursts:
        _train_in_bursts(run, task, micro_batch, seconds, watchdog)
        return
    run.await_start()
    watchdog.pat()
    finish(run, _train(run, task, micro_batch, seconds), dict(task.model.named_parameters()))


def _train_in_bursts(run: Run, task: Task, micro_batch: int, seconds: float, watchdog: Watchdog) -> None:
    if run.start_file is None or run.out is None or run.ready_file is None:
        raise click.UsageError("--bursts needs --ready-file, --start-file and --out")
    task.backward(slice(0, micro_batch), 1.0)  # it meets memory that nobody has touched
    task.model.zero_grad()
    run.ready_file.touch()
    end = Path(f"{run.start_file}.end")
    for number in itertools.count(1):
        start = Path(f"{run.start_file}.{number}")
        while not start.exists():
            if end.exists():
                return
            watchdog.pat()
            time.sleep(BURST_LOOK_S)
        outcome = _train(run, task, int(start.read_text() or micro_batch), seconds)
        finish(replace(run, out=Path(f"{run.out}.{number}")), outcome, {})


def _train(run: Run, task: Task, micro_batch: int, seconds: float) -> Outcome:
    """Rounds until time is up, which may be in the middle of one; the step's cost is spread over its round."""
    optimizer = sgd(task.model)
    parts = pieces(0, run.batch, micro_batch)
    clock = _Clock(seconds)
    loss, cpu_s = None, time.process_time()
    for number in itertools.count() if seconds else range(run.total):
        so_far, offset = 0.0, number % BATCHES * run.batch
        for part in itertools.takewhile(lambda _: not clock.up, parts):
            size = part.stop - part.start
            with clock.work(size):
                so_far += task.backward(slice(part.start + offset, part.stop + offset), size / run.batch)
        if clock.up and clock.step_s:
            break
        loss = so_far
        with clock.step():
            optimizer.step()
            optimizer.zero_grad()
    round_s = clock.round_s(run.batch)
    return Outcome(
        system="single", model=run.model, samples_per_s=run.batch / round_s, round_s=[round_s],
        cpu_s=time.process_time() - cpu_s, batch=run.batch, micro_batch=max(p.stop - p.start for p in parts), loss=loss,
    )  # fmt: skip


class _Clock:
    """Adds up the time of micro-batches and of optimizer steps, and says when time is up."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds if seconds else float("inf")
        self._work_s, self._samples = 0.0, 0
        self.step_s: list[float] = []

    @property
    def up(self) -> bool:
        """Whether time is up; at least one micro-batch is always measured."""
        return self._samples > 0 and time.perf_counter() >= self._end

    @contextlib.contextmanager
    def work(self, samples: int) -> Iterator[None]:
        """Times a micro-batch."""
        started = time.perf_counter()
        yield
        self._work_s += time.perf_counter() - started
        self._samples += samples

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Times a step."""
        started = time.perf_counter()
        yield
        self.step_s.append(time.perf_counter() - started)

    def round_s(self, batch: int) -> float:
        """Seconds of a round of this many samples."""
        return self._work_s / self._samples * batch + statistics.fmean(self.step_s)


if __name__ == "__main__":
    main()

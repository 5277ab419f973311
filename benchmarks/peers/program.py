"""What every peer is as a program: options, an outcome in a file, a deadline, one line when it fails."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import click
import torch
from torch import nn

from benchmarks.workloads import BATCH, WORKLOADS

DTYPES = {"float32": torch.float32, "float64": torch.float64}
FAILED, STUCK = 1, 3
LOOK_S = 0.02
LEAST_ROUNDS = 2  # that are measured where time is short; one that takes far longer than all should is enough
FAR_LONGER = 1.5  # the first is cold


@dataclass(frozen=True)
class Run:
    """What to train, how long, and where the outcome goes."""

    model: str
    batch: int
    rounds: int  # measured ones
    warm_up: int  # rounds before them
    micro_batches: tuple[int, ...]  # sizes to choose from
    out: Path | None
    weights: Path | None  # where to write the parameters at the end
    dtype: torch.dtype
    timeout_s: float
    ready_file: Path | None = None  # made when all is ready to start
    start_file: Path | None = None  # training starts when it is there
    channels_last: bool = False  # the channels of a point side by side in memory
    most_s: float = 0.0  # of the measured rounds; 0: no matter

    def rounds_within(self, round_s: float) -> int:
        """How many to measure, given how long one takes."""
        if not self.most_s:
            return self.rounds
        least = LEAST_ROUNDS if round_s <= FAR_LONGER * self.most_s else 1
        return max(least, min(self.rounds, round(self.most_s / round_s)))

    def await_start(self) -> None:
        """Says that this process is ready, and waits for the word to start."""
        if self.ready_file is not None:
            self.ready_file.touch()
        deadline = time.monotonic() + self.timeout_s
        while self.start_file is not None and not self.start_file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.start_file} did not appear in {self.timeout_s:.0f} s; make it when all are ready"
                )
            time.sleep(LOOK_S)

    @property
    def order(self) -> torch.memory_format:
        """Of images in memory."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    @property
    def total(self) -> int:
        """Rounds to train."""
        return self.warm_up + self.rounds


@dataclass(frozen=True)
class Outcome:
    """What one process measured. `samples_per_s` is the whole system's, the rest is this process's own."""

    system: str
    model: str
    samples_per_s: float
    round_s: list[float]
    cpu_s: float  # of the measured rounds
    batch: int
    micro_batch: int
    loss: float | None = None  # of the last round, where this process knows it
    rank: int = 0
    world_size: int = 1
    peak_rss: int = field(default_factory=lambda: peak_rss_bytes())


class Rounds:
    """Takes the time of rounds; those of the warm-up are left out."""

    def __init__(self, run: Run, watchdog: Watchdog) -> None:
        self._run, self._watchdog = run, watchdog
        self._moments = [time.perf_counter()]
        self._cpu_s = time.process_time()

    def numbers(self, agreed: Callable[[int], int]) -> Iterator[int]:
        """The rounds to train; after the warm-up all ranks agree how many are measured."""
        count = self._run.total
        for number in itertools.count():
            if number == self._run.warm_up and number:
                count = number + agreed(self._run.rounds_within(self._moments[-1] - self._moments[-2]))
                self._moments[-1], self._cpu_s = time.perf_counter(), time.process_time()
            if number == count:
                return
            yield number
            self._watchdog.pat()
            self._moments.append(time.perf_counter())

    def outcome(self, system: str, micro_batch: int, **more: Any) -> Outcome:
        """What was measured."""
        ends = self._moments[self._run.warm_up :]
        round_s = [b - a for a, b in itertools.pairwise(ends)]
        return Outcome(
            system=system,
            model=self._run.model,
            samples_per_s=self._run.batch / statistics.median(round_s),
            round_s=round_s,
            cpu_s=time.process_time() - self._cpu_s,
            batch=self._run.batch,
            micro_batch=micro_batch,
            **more,
        )


class Watchdog:
    """Ends the process when nothing happens for too long: a thread blocked in C++ cannot be woken up."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._patted = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def pat(self) -> None:
        """Something happened."""
        self._patted.set()

    def _watch(self) -> None:
        while self._patted.wait(self._timeout_s):
            self._patted.clear()
        leave(STUCK, f"nothing happened for {self._timeout_s:.0f} s; check the other ranks, or raise --timeout-s")


def leave(code: int, why: str) -> NoReturn:
    """End the process now, with one line; threads of Gloo that hang are left to die."""
    print(f"rank {os.environ.get('RANK', '0')}: {' '.join(why.split())}", file=sys.stderr, flush=True)
    os._exit(code)


def run_options(default_micro_batches: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of every trainer; the command gets them as one `Run`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def with_run(
            model: str, batch: int, rounds: int, warm_up: int, micro_batches: str, out: Path | None,
            weights: Path | None, dtype: str, timeout_s: float, ready_file: Path | None, start_file: Path | None,
            channels_last: bool, most_s: float, **more: Any,
        ) -> None:  # fmt: skip
            sizes = _sizes(micro_batches)
            run = Run(
                model, batch, rounds, warm_up, sizes, out, weights, DTYPES[dtype], timeout_s, ready_file, start_file,
                channels_last, most_s,
            )  # fmt: skip
            torch.set_num_threads(1)
            try:
                command(run, **more)
            except Exception as error:  # whatever it is, a rank that failed must end, and say why in one line
                leave(FAILED, f"{type(error).__name__}: {error}")

        with_run.__doc__ = command.__doc__
        with_run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
        for option in reversed(_options(default_micro_batches)):
            with_run = option(with_run)
        return with_run

    return decorate


def _sizes(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise click.UsageError(f"--micro-batches {text}: give sizes with commas between them, like 8,24")
    return tuple(int(word) for word in words)


def _options(micro_batches: str) -> list[Callable[[Any], Any]]:
    path = click.Path(path_type=Path, dir_okay=False)
    return [
        click.option("--model", type=click.Choice(list(WORKLOADS)), default="mobilenet_v2", show_default=True),
        click.option("--batch", default=BATCH, show_default=True, help="Samples of a round, of all ranks together."),
        click.option("--rounds", default=5, show_default=True, help="Rounds to measure."),
        click.option("--most-s", default=0.0, help="Measure fewer rounds where they take longer."),
        click.option("--warm-up", default=2, show_default=True, help="Rounds before them."),
        click.option("--micro-batches", default=micro_batches, show_default=True, help="Sizes; the fastest is used."),
        click.option("--out", type=path, help="File for the outcome, one JSON object; stdout if not given."),
        click.option("--weights", type=path, help="File for this rank's parameters at the end (safetensors)."),
        click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True),
        click.option("--channels-last", is_flag=True, help="Images with the channels of a point side by side."),
        click.option("--ready-file", type=path, help="Made when this process is ready to start."),
        click.option("--start-file", type=path, help="Training starts when this file exists."),
        click.option("--timeout-s", default=300.0, show_default=True, help="Longest wait for anything."),
    ]


def finish(run: Run, outcome: Outcome, parameters: dict[str, nn.Parameter]) -> None:
    """Write the outcome and, where asked for, the parameters."""
    text = json.dumps(asdict(outcome))
    if run.out is None:
        print(text, flush=True)
    else:
        part = run.out.with_suffix(".part")
        part.write_text(text)
        part.rename(run.out)  # whoever waits for the file never sees half of it
    if run.weights is not None:
        from safetensors.torch import save_file

        save_file({n: p.detach().clone().contiguous() for n, p in parameters.items()}, run.weights)


def peak_rss_bytes() -> int:
    """Most bytes this process held so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

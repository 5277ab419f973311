"""What does the machinery cost? One agent against a plain PyTorch loop, and two agents against two plain processes.

    python -m benchmarks.overhead --json

one_device_ratio: samples/s of one agent ÷ samples/s of a plain loop on the same micro-batches.
two_device_ratio: (two agents ÷ one agent) ÷ (two independent plain processes at once ÷ one).
Everything is interleaved and repeated in one go; the median ratio counts, and of the two models the worse.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import torch

from benchmarks import workloads
from benchmarks.workloads import Workload
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.loading import training_loader
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.training import run_on
from potluck.metrics.folds import rounds as round_records
from potluck.metrics.records import RECORDS, read
from potluck.model.forms import LABEL, call_model
from potluck.plan.baselines import even_plan
from potluck.types import Fleet, Member, Plan, RoundRecord, Stage
from tests.models.zoo_jobs import devices

SIZES = {"mobilenet_v2": (16, 8), "gpt_10m": (4, 8)}  # samples of a micro-batch, micro-batches of a round


def workload(name: str, rounds: int) -> Workload:
    """A workload at this benchmark's sizes: rounds short enough to interleave many repeats."""
    micro_batch, micro_batches = SIZES[name]
    return workloads.workload(name, rounds, micro_batch * micro_batches, micro_batch)


def plain_loop(name: str, rounds: int) -> None:
    """A plain PyTorch loop with gradient accumulation: at every line it reads some rounds, then their seconds."""
    torch.set_num_threads(1)
    job = workload(name, 10**6).job
    model = job.model().train()  # type: ignore[operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = training_loader(job)
    done = 0
    print("ready", flush=True)
    while sys.stdin.readline():
        seconds = []
        for round in range(done, done + rounds):
            batch = loader.get(round)
            started = time.perf_counter()
            optimizer.zero_grad()
            for start in range(0, job.batch_size, job.micro_batch):
                rows = slice(start, start + job.micro_batch)
                feeds = {n: t[rows] for n, t in batch.feeds.items() if n != LABEL}
                loss = job.loss(call_model(model, feeds), batch.feeds[LABEL][rows])
                (loss * (job.micro_batch / job.batch_size)).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        done += rounds
        print(json.dumps(seconds), flush=True)
    loader.close()


class PlainLoops:
    """Two plain loops in processes of their own, that run when told to: one of them, or both at once."""

    def __init__(self, name: str, rounds: int) -> None:
        command = [sys.executable, "-m", "benchmarks.overhead", "--plain", name, "--rounds", str(rounds)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        self.run(2)  # warm

    def run(self, copies: int) -> float:
        """Rounds per second of so many loops at once, together."""
        some = self._processes[:copies]
        for process in some:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        total = 0.0
        for process in some:
            assert process.stdout is not None
            total += 1.0 / statistics.median(json.loads(process.stdout.readline())[1:])
        return total

    def close(self) -> None:
        """Ends them."""
        for process in self._processes:
            process.communicate(timeout=60)


def alone(prepared: PreparedJob) -> Plan:
    blocks = len(prepared.facts.blocks)
    job = prepared.job
    count = job.batch_size // job.micro_batch
    stage = Stage(blocks=(0, blocks), group=(Member(device="d0", share=count),))
    return Plan(micro_batch_size=job.micro_batch, micro_batches=count, stages=(stage,))


def pairs(prepared: PreparedJob) -> dict[str, Plan]:
    """Plans for two equal devices: both hold everything and take turns, or a pipeline of two stages."""
    job = prepared.job
    count = job.batch_size // job.micro_batch
    blocks = len(prepared.facts.blocks)
    both = tuple(Member(device=d.name, share=count // 2) for d in devices(2))
    turns = Plan(micro_batch_size=job.micro_batch, micro_batches=count, stages=(Stage(blocks=(0, blocks), group=both),))
    return {"turns": turns, "pipeline": even_plan(prepared.facts, devices(2), job.micro_batch, count)}


def run_agents(live: LiveFleet, prepared: PreparedJob, plan: Plan, options: Options) -> float:
    """Rounds per second, the first few left out; from the moments of the commits."""
    with tempfile.TemporaryDirectory() as folder:
        moments: list[float] = []
        watcher = _Moments(moments)
        run_on(live, prepared, plan, Options(run_dir=Path(folder) / "run", timeout_s=120.0, watchers=(watcher,)))
        assert len(round_records(read(Path(folder) / "run" / RECORDS))) == len(moments)
    steps = [b - a for a, b in itertools.pairwise(moments[2:])]
    return 1.0 / statistics.median(steps)


class _Moments:
    def __init__(self, moments: list[float]) -> None:
        self._moments = moments

    def record(self, record: object) -> None:
        if isinstance(record, RoundRecord):
            self._moments.append(time.perf_counter())


def measure(name: str, rounds: int, repeats: int) -> dict[str, float]:
    """Both ratios of one model: medians over interleaved repeats, each so short that the machine's mood lasts."""
    options = Options(timeout_s=120.0)
    prepared = prepare_job(workload(name, rounds).job)
    ones: list[float] = []
    twos: list[float] = []
    loops = PlainLoops(name, rounds)
    with LiveFleet(Fleet(devices=devices(2)), options) as live:
        candidates = pairs(prepared)
        run_agents(live, prepared, alone(prepared), options)  # warm
        first = {k: run_agents(live, prepared, p, options) for k, p in candidates.items()}
        kind = max(first, key=lambda k: first[k])
        for repeat in range(repeats):
            plain_one, agent_one = loops.run(1), run_agents(live, prepared, alone(prepared), options)
            plain_two, agent_two = loops.run(2), run_agents(live, prepared, candidates[kind], options)
            ones.append(agent_one / plain_one)
            twos.append((agent_two / agent_one) / (plain_two / plain_one))
            print(
                f"{name} {repeat}: plain {plain_one:.2f} rounds/s, agent {agent_one:.2f}, two plain {plain_two:.2f}, "
                f"two agents ({kind}) {agent_two:.2f}: {ones[-1]:.3f} {twos[-1]:.3f}",
                file=sys.stderr,
                flush=True,
            )
    loops.close()
    return {
        "one_device_ratio": statistics.median(ones),
        "one_device_spread": statistics.pstdev(ones),
        "two_device_ratio": statistics.median(twos),
        "two_device_spread": statistics.pstdev(twos),
        "repeats": repeats,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
@click.option("--quick", is_flag=True, help="Fewer repeats: about six minutes.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--models", default=",".join(SIZES), show_default=True)
@click.option("--plain", default="", hidden=True)
def main(as_json: bool, quick: bool, rounds: int, models: str, plain: str) -> None:
    """Measure what agents cost over plain PyTorch. Example: python -m benchmarks.overhead --json"""
    torch.set_num_threads(1)
    if plain:
        plain_loop(plain, rounds)
        return
    results = {name: measure(name, rounds, 5 if quick else 13) for name in models.split(",")}
    worst = {key: min(r[key] for r in results.values()) for key in ("one_device_ratio", "two_device_ratio")}
    print(f"{'model':14} {'one device':>12} {'two devices':>12}")
    for name, r in results.items():
        print(f"{name:14} {r['one_device_ratio']:12.3f} {r['two_device_ratio']:12.3f}")
    print(f"{'worse':14} {worst['one_device_ratio']:12.3f} {worst['two_device_ratio']:12.3f}")
    if as_json:
        print(json.dumps({**worst, "models": results}))


if __name__ == "__main__":
    main()

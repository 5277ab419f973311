"""Our runtime as a program that the benchmark talks to: plans by several planners, each trained for a while.

It runs in the coordinator's place and waits for `potluck join` on every device. One JSON request a line comes in on
standard input, one answer a line goes out on standard output; it ends with its input. A request with "model" measures
the devices and finds every planner's plan; one with "planner" then trains by that plan for a while; one with "given"
trains a model by a plan from before.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
import torch

from benchmarks.testbed.topology import NETWORK
from benchmarks.throughput.cells import OURS, TRY_PLAN_S, micro_batches
from benchmarks.workloads import workload
from potluck.commands.trying import a_few_rounds, try_plans
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.errors import PlanError, PotluckError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.events.refine import Spent
from potluck.plan.groups import shareable
from potluck.profile.store import Store
from potluck.types import Plan, Profile
from potluck.wire.trust import PlainTrust

PROFILED_ROWS = 60  # the profile also has half, a quarter and twice as many: what a device computes at a time here
FEWEST, MOST = 3, 16  # rounds of a measurement, the warm-up included; two, if one takes longer than all should
TRIES = 4  # plans of ours
NETWORK_S = 10.0  # all links together are measured
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Request:
    """One cell to measure."""

    model: str
    batch: int
    planners: tuple[str, ...]
    seconds: float
    micro_batch: int | None = None  # None: whatever suits a planner best
    try_plan_s: float = TRY_PLAN_S
    profile_s: float = 45.0  # a device of 0.12 core takes that long for the largest rows


@dataclass
class Answer:
    """One planner's plan, or why there is none."""

    planner: str
    predicted_s: float | None = None
    plan: str = ""
    given: dict[str, Any] | None = None  # the plan itself
    budget_bytes: dict[str, int] | None = None  # device → what its process takes by the plan
    same_as: str | None = None  # another planner that found this very plan
    error: str | None = None


class Trials:
    """A model on the devices that are here: profiled once, then trained by whichever plan is asked for."""

    def __init__(self, live: LiveFleet, request: Request, store: Store) -> None:
        self._live, self._request = live, request
        self._prepared = prepared(request.model, request.batch, request.micro_batch or PROFILED_ROWS)
        settings = MeasuringTime(
            seconds=request.profile_s, network_seconds=NETWORK_S, store=store, timeout_s=TIMEOUT_S, note=say
        )
        self._profile = profile_fleet(live, self._prepared, settings)
        options = Options(tries=TRIES, plan_s=request.try_plan_s, timeout_s=TIMEOUT_S, progress=say)
        self._tried, self._profile = try_plans(live, self._prepared, self._profile, self._sizes(), options)
        self._tables = Tables(self._profile)

    def _sizes(self) -> list[tuple[int, int]]:
        batch, size = self._request.batch, self._request.micro_batch
        return micro_batches(batch) if size is None else [(size, batch // size)]

    def _chosen(self, planner: str) -> tuple[Plan, float]:
        """A planner's plan; of ours, the one that was the fastest when it was tried."""
        if planner == OURS:
            plan = self._tried[0].found.plan
            return plan, simulate(plan, self._prepared.facts, self._profile).round_s
        return best_plan(planner, self._prepared, self._profile, self._sizes())

    def plan(self) -> list[Answer]:
        """Every planner's plan."""
        self._plans: dict[str, tuple[Plan, float]] = {}
        answers = []
        for planner in self._request.planners:
            answer = Answer(planner)
            answers.append(answer)
            try:
                plan, answer.predicted_s = self._chosen(planner)
            except PlanError as error:
                answer.error = str(error)
                continue
            answer.plan, answer.given = outline(plan), msgspec.to_builtins(plan)
            idle = {d.device.name: d.idle_bytes for d in self._profile.devices}
            uses = peak_bytes(plan, self._prepared.facts, tables=self._tables)
            answer.budget_bytes = {d: u.total + idle[d] for d, u in uses.items()}
            answer.same_as = next((other for other, (known, _) in self._plans.items() if known == plan), None)
            self._plans[planner] = (plan, answer.predicted_s)
        return answers

    def measure(self, planner: str) -> dict[str, Any]:
        """What training by a planner's plan comes to: seconds of a round, and where each device's time goes."""
        plan, predicted_s = self._plans[planner]
        round_s, spent_s = self._train(plan, predicted_s)
        say(f"{self._request.model} {planner}: {round_s:.2f} s a round, {predicted_s:.2f} planned, {outline(plan)}")
        return {"round_s": round_s, "spent_s": spent_s}

    def _train(self, plan: Plan, predicted_s: float) -> tuple[float, Spent]:
        count = rounds_to_measure(self._request.seconds, predicted_s)
        return a_few_rounds(self._live, self._prepared, plan, count, Options(timeout_s=TIMEOUT_S))


def rounds_to_measure(seconds: float, round_s: float) -> int:
    """How many rounds are trained, the warm-up included, to measure for so long."""
    return FEWEST - 1 if round_s > seconds else max(FEWEST, min(MOST, round(seconds / round_s) + 2))


def prepared(model: str, batch: int, rows: int = PROFILED_ROWS) -> PreparedJob:
    """The job of a model. BatchNorm is as in DDP: each device normalises its own rows."""
    return prepare_job(replace(workload(model, 1, batch, rows).job, batchnorm="local"))


def best_plan(
    planner: str, prepared: PreparedJob, profile: Profile, sizes: Sequence[tuple[int, int]]
) -> tuple[Plan, float]:
    """Another planner's plan at the micro-batch size that suits it best, and seconds of its round by the simulation."""
    facts = shareable(prepared.facts, prepared.job.batchnorm)
    plans, why = [], None
    for size in sizes:
        try:
            plan = PLANNERS[planner](facts, profile, *size)
        except PotluckError as error:
            why = error
            continue
        plans.append((simulate(plan, prepared.facts, profile).round_s, plan))
    if not plans:
        raise PlanError(str(why))
    seconds, plan = min(plans, key=lambda scored: scored[0])
    return plan, seconds


def outline(plan: Plan) -> str:
    """A plan in a line: micro-batches, then each stage's blocks, depth, devices and shares."""
    stages = []
    for number, stage in enumerate(plan.stages):
        members = "+".join(f"{m.device}:{m.share}" for m in stage.group)
        again = " again" if stage.recompute else f" late {stage.late_weights}" if stage.late_weights else ""
        stages.append(f"[{stage.blocks[0]}-{stage.blocks[1]}) k{plan.depth(number)}{again} {members} {stage.sharing}")
    return f"{plan.micro_batches}x{plan.micro_batch_size} " + " | ".join(stages)


def say(text: str) -> None:
    """Progress, apart from the answers."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def serve(live: LiveFleet, lines: Iterable[str], store: Store) -> Iterator[dict[str, Any]]:
    """The answers to requests. What devices took for a model is kept: with other lines they take the same."""
    trials: Trials | None = None
    for line in lines:
        given = json.loads(line)
        if "given" in given:
            job, plan = prepared(given["model"], given["batch"]), msgspec.convert(given["given"], Plan)
            round_s, spent_s = a_few_rounds(live, job, plan, given["rounds"], Options(timeout_s=TIMEOUT_S))
            yield {"round_s": round_s, "spent_s": spent_s}
        elif "model" in given:
            trials = Trials(live, Request(**{**given, "planners": tuple(given["planners"])}), store)
            yield {"answers": [asdict(answer) for answer in trials.plan()]}
        else:
            assert trials is not None, "a plan was asked for before a model was given"
            yield trials.measure(given["planner"])


def answer_requests(
    listen: str, devices: int, serve: Callable[[LiveFleet, Iterable[str], Store], Iterable[dict[str, Any]]]
) -> None:
    """Waits for the devices, then answers each line of standard input by one on standard output."""
    torch.set_num_threads(1)
    options = Options(listen=listen, trust=PlainTrust.on(NETWORK), joined=devices, timeout_s=300, progress=say)
    with LiveFleet(None, options) as live, tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"here": sorted(live.roster.specs)}), flush=True)
        for answer in serve(live, sys.stdin, Store(Path(folder))):
            print(json.dumps(answer), flush=True)


@click.command()
@click.option("--listen", required=True, help="Where devices join, HOST:PORT.")
@click.option("--devices", required=True, type=int, help="How many.")
def main(listen: str, devices: int) -> None:
    """Measure what the requests on standard input ask for."""
    answer_requests(listen, devices, serve)


if __name__ == "__main__":
    main()

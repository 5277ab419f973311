"""Lock-step and overlapping rounds on one fleet, as a program that the benchmark talks to.

It runs in the coordinator's place and waits for `potluck join` on every device. One JSON request a line comes in on
standard input: a model and a batch, and how long and how often to train. One answer a line goes out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import click
import msgspec

from benchmarks.throughput.cells import micro_batches
from benchmarks.throughput.ours import (
    NETWORK_S,
    TIMEOUT_S,
    answer_requests,
    outline,
    prepared,
    rounds_to_measure,
    say,
)
from potluck.commands.trying import a_few_rounds, try_plans
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.metrics.lanes import busy_s
from potluck.plan.cost.tables import Tables
from potluck.plan.cost.traffic import Messages
from potluck.plan.events.event_simulation import simulate
from potluck.profile.store import Store
from potluck.types import Plan, Profile

BOUNDS = (0, 1)  # staleness


@dataclass(frozen=True)
class Request:
    """One model on the fleet that is here."""

    model: str
    batch: int
    seconds: float  # of each look
    looks: int  # at each bound, in turn
    tries: int  # plans that are tried for each bound
    plan_s: float = 3.0
    profile_s: float = 45.0


@dataclass
class Trained:
    """What one bound came to."""

    plan: str
    given: Any
    predicted_s: float
    round_s: list[float]
    busiest_s: list[float]  # of each look: the busiest device, or line, in a round
    busy: dict[str, float]

    @property
    def share(self) -> float:
        """The part of a round that its busiest device or line is busy."""
        return statistics.median(b / r for b, r in zip(self.busiest_s, self.round_s, strict=True))


class Trials:
    """A model profiled once, then planned and trained for each bound."""

    def __init__(self, live: LiveFleet, request: Request, store: Store) -> None:
        self._live, self._request = live, request
        settings = MeasuringTime(
            seconds=request.profile_s, network_seconds=NETWORK_S, store=store, timeout_s=TIMEOUT_S, note=say
        )
        self._jobs = {late: self._job(late) for late in BOUNDS}
        self._profile = profile_fleet(live, self._jobs[0], settings)

    def _job(self, staleness: int) -> PreparedJob:
        one = prepared(self._request.model, self._request.batch)
        return replace(one, job=replace(one.job, staleness=staleness))

    def measure(self) -> dict[str, Any]:
        """Each bound's best plan, in turn, so that a slow minute of the machine is everybody's."""
        found, request = {late: self._planned(late) for late in BOUNDS}, self._request
        for _ in range(request.looks):
            for late in BOUNDS:
                self._look(late, *found[late])
        return {
            str(late): {**msgspec.to_builtins(trained), "share": trained.share} for late, (_, trained) in found.items()
        }

    def _planned(self, late: int) -> tuple[Plan, Trained]:
        request = self._request
        options = Options(tries=request.tries, plan_s=request.plan_s, timeout_s=TIMEOUT_S, progress=say)
        sizes = micro_batches(request.batch)
        attempts, profile = try_plans(self._live, self._jobs[late], self._profile, sizes, options)
        plan, facts = attempts[0].found.plan, self._jobs[late].facts
        predicted_s = simulate(plan, facts, profile).round_s
        say(f"{self._request.model}, staleness {late}: {predicted_s:.2f} s planned, {outline(plan)}")
        return plan, Trained(outline(plan), msgspec.to_builtins(plan), predicted_s, [], [], {})

    def _look(self, late: int, plan: Plan, trained: Trained) -> None:
        count = rounds_to_measure(self._request.seconds, trained.predicted_s) + 2 * late
        round_s, spent = a_few_rounds(self._live, self._jobs[late], plan, count, Options(timeout_s=TIMEOUT_S))
        trained.busy = {device: busy_s(took) for device, took in spent.items()}
        trained.round_s.append(round_s)
        trained.busiest_s.append(max(*trained.busy.values(), busiest_line_s(plan, self._jobs[late], self._profile)))
        say(f"{self._request.model}, staleness {late}: {round_s:.3f} s a round, {trained.predicted_s:.3f} planned")


def busiest_line_s(plan: Plan, job: PreparedJob, profile: Profile) -> float:
    """Seconds of a round for which the busiest line is taken by what the plan sends over it."""
    messages, taken = Messages(plan, job.facts, Tables(profile)), dict[str, float]()
    for device in plan.devices:
        for j in range(plan.micro_batches):
            for kind in ("send_outputs", "send_gradients"):
                for parcel in messages.leaving(device, kind, j):
                    taken[parcel.source] = taken.get(parcel.source, 0.0) + parcel.transfer_s
    return max(taken.values(), default=0.0)


def serve(live: LiveFleet, lines: Iterable[str], store: Store) -> Iterator[dict[str, Any]]:
    """The answers to requests."""
    for line in lines:
        yield Trials(live, Request(**json.loads(line)), store).measure()


@click.command()
@click.option("--listen", required=True, help="Where devices join, HOST:PORT.")
@click.option("--devices", required=True, type=int, help="How many.")
def main(listen: str, devices: int) -> None:
    """Measure what the requests on standard input ask for."""
    answer_requests(listen, devices, serve)


if __name__ == "__main__":
    main()

"""The coordinator of one run on a testbed: trains by a given plan, and goes on when devices are lost.

    python -m benchmarks.recovery.coordinator --listen 10.77.0.1:7117 --devices 6 --model small_gpt --run-dir run …

Its first line on standard output says that all devices are here, its second when training begins, on the machine's
monotonic clock; the records of the run tell the rest.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import torch

from benchmarks.recovery.heavy import Heavy, planned_anew
from benchmarks.recovery.jobs import job_of
from benchmarks.recovery.told import Told
from benchmarks.testbed.topology import NETWORK
from potluck.commands.training_job import interrupted, terms_before
from potluck.control.cluster_events import Event, Order, Written
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.training import run_on
from potluck.types import Plan, Profile
from potluck.wire.trust import PlainTrust

TIMEOUT_S = 120.0
DIES_AFTER = 10  # rounds, where it is to die between ledger and commit


class DiesBeforeCommit(Told):
    """Vanishes when a round is in the ledger and nobody knows it yet."""

    def tell(self, event: Event) -> list[Order]:
        if isinstance(event, Written) and event.round == DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().tell(event)


TERMS: dict[str, type[Told]] = {"ours": Told, "heavy": Heavy, "dies": DiesBeforeCommit}


def profile_of(live: LiveFleet, prepared: PreparedJob, file: Path) -> Profile:
    """The profile in a file, measured now if there is none yet: it is the same for every run of a model."""
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=Profile)
    profile = profile_fleet(live, prepared, MeasuringTime(seconds=2.0, timeout_s=TIMEOUT_S))
    file.write_bytes(msgspec.json.encode(profile))
    return profile


@click.command()
@click.option("--listen", required=True, help="Where devices join, HOST:PORT.")
@click.option("--devices", required=True, type=int, help="How many.")
@click.option("--model", required=True, help="A job of benchmarks/recovery/jobs.py.")
@click.option("--plan", "plan_file", required=True, type=Path, help="The plan to begin with, as JSON.")
@click.option("--profile", "profile_file", required=True, type=Path, help="What devices cost; measured if missing.")
@click.option("--run-dir", required=True, type=Path, help="Where the run goes.")
@click.option("--rounds", required=True, type=int, help="How many.")
@click.option("--save-every", default=10**9, help="Rounds from one checkpoint to the next.")
@click.option("--how", type=click.Choice([*TERMS]), default="ours", help="What is done about losses.")
@click.option("--first-copy-s", default=0.0, help="Seconds of training before devices first copy their states.")
@click.option("--resume", is_flag=True, help="Go on with a run that was interrupted.")
@click.option("--anew", is_flag=True, help="Plan anew for whoever is here, instead of the given plan.")
def main(
    listen: str, devices: int, model: str, plan_file: Path, profile_file: Path, run_dir: Path, rounds: int,
    save_every: int, how: str, first_copy_s: float, resume: bool, anew: bool,
) -> None:  # fmt: skip
    """Train one job."""
    torch.set_num_threads(1)
    prepared = prepare_job(replace(job_of(model), rounds=rounds, checkpoint_every=save_every))
    plan = msgspec.json.decode(plan_file.read_bytes(), type=Plan)
    options = Options(
        listen=listen, trust=PlainTrust.on(NETWORK), joined=devices, timeout_s=TIMEOUT_S,
        run_dir=run_dir, resume=resume, first_copy_s=first_copy_s,
    )  # fmt: skip
    before = terms_before(options)
    with LiveFleet(None, options, interrupted(options, before)) as live:
        print(json.dumps({"here": sorted(live.roster.specs)}), flush=True)
        profile = profile_of(live, prepared, profile_file)
        if live.held:
            plan = before[max(before)]
        elif anew:
            plan = planned_anew(prepared, profile, live.roster.links, plan)
        result = run_on(
            live, prepared, plan, options, profile=profile, terms=TERMS[how], before=before if live.held else None
        )
        print(json.dumps({"lost": result.samples_lost, "doubled": result.samples_doubled}), flush=True)


if __name__ == "__main__":
    main()

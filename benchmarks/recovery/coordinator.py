"""The coordinator of one run on a testbed: measures, trains by a given plan, and goes on when devices are lost.

    python -m benchmarks.recovery.coordinator --listen 10.77.0.1:7117 --devices 6 --model gpt_10m --run-dir run

Its first line on standard output says that all devices are here, its second when training begins, on the machine's
monotonic clock; the records of the run tell the rest.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import torch

from benchmarks.recovery.heavy import Heavy
from benchmarks.recovery.jobs import job_of
from potluck.runtime.live_fleet import LiveFleet
from potluck.runtime.options import Options
from potluck.runtime.prepare import prepare_job
from potluck.runtime.profiling import ProfileSettings, profile_fleet
from potluck.runtime.run import run_on
from potluck.runtime.terms import Terms
from potluck.types import Plan

TIMEOUT_S = 120.0


@click.command()
@click.option("--listen", required=True, help="Where devices join, HOST:PORT.")
@click.option("--devices", required=True, type=int, help="How many.")
@click.option("--model", required=True, help="A job of benchmarks/recovery/jobs.py.")
@click.option("--plan", "plan_file", required=True, type=Path, help="The plan to begin with, as JSON.")
@click.option("--run-dir", required=True, type=Path, help="Where the run goes.")
@click.option("--rounds", required=True, type=int, help="How many.")
@click.option("--heavy", "is_heavy", is_flag=True, help="Reschedule the hard way after a loss.")
@click.option("--copies/--no-copies", default=True, help="Whether devices copy their states.")
@click.option("--profile-s", default=2.0, help="How long devices measure.")
def main(
    listen: str, devices: int, model: str, plan_file: Path, run_dir: Path, rounds: int, is_heavy: bool, copies: bool,
    profile_s: float,
) -> None:  # fmt: skip
    """Train one job."""
    torch.set_num_threads(1)
    prepared = prepare_job(replace(job_of(model), rounds=rounds))
    plan = msgspec.json.decode(plan_file.read_bytes(), type=Plan)
    waiting = Options(listen=listen, joined=devices, timeout_s=TIMEOUT_S)
    with LiveFleet(None, waiting) as live:
        print(json.dumps({"here": sorted(live.roster.specs)}), flush=True)
        profile = profile_fleet(live, prepared, ProfileSettings(seconds=profile_s, timeout_s=TIMEOUT_S))
        print(json.dumps({"ready_s": time.monotonic()}), flush=True)
        options = Options(run_dir=run_dir, timeout_s=TIMEOUT_S, first_copy_s=0.0 if copies else 1e9)
        terms = Heavy if is_heavy else Terms
        result = run_on(live, prepared, plan, options, profile=profile, terms=terms)
        print(json.dumps({"lost": result.samples_lost, "doubled": result.samples_doubled}), flush=True)


if __name__ == "__main__":
    main()

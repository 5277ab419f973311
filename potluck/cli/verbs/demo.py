"""`potluck demo`: the whole system on this machine, in well under a minute."""

from __future__ import annotations

import time
from pathlib import Path

import click

from potluck.cli.session import terminal
from potluck.cli.verbs.train import pace, report, round_lines
from potluck.commands.here import RUNS, check_run_dir, crowding
from potluck.settings.own_command import command
from potluck.settings.values import read
from potluck.types import DeviceSpec, Fleet
from potluck.units import speeds


def demo(devices: str, run_dir: Path | None, *, as_json: bool) -> int:
    """Trains the demo's job on emulated devices and says what to try next; returns the exit code."""
    fleet = read(_fleet, devices, "--devices")
    check_run_dir(run_dir or RUNS / "new", resume=False)
    started = time.monotonic()
    given = ", ".join(f"{device.speed:g}" for device in fleet.devices)
    title = f"potluck demo: one model on {len(fleet.devices)} devices, of speed {given}"
    with terminal(title, "loading PyTorch", as_json=as_json) as it:
        from potluck.commands.demo_job import job, test_labels
        from potluck.commands.training_job import train
        from potluck.coordinator.run_folder.folder_names import new_run_dir

        it.display.judged_by(job.best_metric[0])
        it.run_dir = run_dir or new_run_dir(RUNS)
        result = train(job, fleet, it.options(run_dir=it.run_dir, profile_s=3.0, plan_s=1.0))
    seconds = time.monotonic() - started
    if as_json or result.reason == "stopped":
        report(
            result, seconds, as_json=as_json, command=train_command(devices, as_json=as_json), crowded=crowding(fleet)
        )
        return 0
    click.echo(f"accuracy {result.metrics['accuracy']:.1%} on {len(test_labels)} digits that it had never seen")
    click.echo(f"samples  {result.samples_lost} lost, {result.samples_doubled} used twice")
    for line in round_lines(result, crowding(fleet)):
        click.echo(line)
    click.echo(f"model    {result.model_path}, after {result.rounds} rounds: {pace(result, seconds)}")
    click.echo("\ntry next")
    for line, why in next_steps(result.run_dir):
        click.echo(f"  {why}\n    {line}")
    return 0


def _fleet(devices: str) -> Fleet:
    return Fleet(devices=tuple(DeviceSpec(name=name, speed=speed) for name, speed in speeds(devices)))


def train_command(devices: str, *, as_json: bool) -> list[str]:
    """What trains the demo's job: the demo itself always begins anew."""
    from potluck.commands import demo_job

    return ["train", demo_job.__file__, "--local", devices, *(["--json"] if as_json else [])]


def next_steps(run_dir: Path) -> tuple[tuple[str, str], ...]:
    """Two commands worth trying after the demo, and why."""
    from potluck.commands import demo_job

    example = Path("examples/digits_cnn.py")
    job_file = example if example.is_file() else Path(demo_job.__file__)
    return (
        (command("verify", "--run", run_dir), "was every sample used exactly once?"),
        (command("verify", job_file, "--local", "1,0.5,0.25"), "are the numbers those of one machine?"),
    )

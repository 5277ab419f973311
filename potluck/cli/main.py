"""The command line: each verb settles its settings and calls one function. Heavy modules are imported only then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from potluck import __version__
from potluck.cli import verb_flags
from potluck.cli.failures import OneLineGroup, said_as_json
from potluck.cli.run_verbs import attach, status, stop
from potluck.errors import InputError
from potluck.settings.extensions import load_extensions
from potluck.settings.verb_settings import (
    JoinSettings,
    PlanSettings,
    ProfileSettings,
    Settings,
    TrainSettings,
    config_file,
    settle,
)

S = TypeVar("S", bound=Settings)


def _settled(kind: type[S], flags: Mapping[str, Any], config: Path | None) -> S:
    """The settings of a verb, which may name what an extension adds.

    What is wrong with either is also said as JSON, if that was asked for.
    """
    try:
        load_extensions()
        return settle(kind, flags, os.environ, config_file(config, os.environ))
    except InputError as error:
        if flags.get("json"):
            said_as_json(str(error), error.exit_code)
        raise


@click.group(
    cls=OneLineGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="potluck")
@click.pass_context
def main(context: click.Context) -> None:
    """Train one PyTorch model on the devices you already have.

    \b
    Example:
      potluck demo
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (status, attach, stop):
    main.add_command(_command)


@main.command(short_help="Train digits on three emulated devices.")
@click.option("--devices", metavar="SPEEDS", default="1,0.6,0.4", show_default=True, help="The emulated devices.")
@click.option("--run-dir", type=Path, metavar="DIR", help="Where the run is kept.  [default: runs/<time>]")
@verb_flags.JSON
def demo(devices: str, run_dir: Path | None, json: bool | None) -> int:
    """Train digits on three unequal devices, all emulated here, in well under a minute.

    \b
    Example:
      potluck demo --devices 1,0.6,0.4
    """
    from potluck.cli.verbs.demo import demo as run

    return run(devices, run_dir, as_json=bool(json))


@main.command(short_help="Train the job of a Python file.")
@click.argument("job")
@verb_flags.together(*verb_flags.FLEET, *verb_flags.CHOOSING, *verb_flags.MEASURING)
@click.option(
    "--chaos", metavar="SCRIPT", help="Rehearse losses: a TOML file says what befalls whom (docs/survival.md)."
)
@verb_flags.together(*verb_flags.LASTING, verb_flags.SYNC)
@verb_flags.data("With --sync: what local devices own; {device} in it is a device's name.")
@click.option("--run-dir", metavar="DIR", help="Where the run is kept.  [default: runs/<time>]")
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir, or with the newest one in runs/.")
@click.option("--detach", is_flag=True, help="Train on when this terminal is closed; see status, attach and stop.")
@verb_flags.together(*verb_flags.JOINING, verb_flags.CONFIG, verb_flags.JSON)
def train(job: str, resume: bool, detach: bool, config: Path | None, **flags: Any) -> int:
    """Train the job of a Python file (its name `job`, or another as FILE.py:NAME).

    Without --plan, the devices are measured and the best plan found for them is used.
    First Ctrl-C: finish the round, save everything, stop. Second: stop at once.

    \b
    Examples:
      potluck train examples/digits_cnn.py --local 1,0.5,0.25 --bandwidth 100Mbit
      potluck train job.py --listen 192.168.1.5:7117 --devices 2 --plain-network 192.168.1.0/24
      potluck train job.py --sync ours --local a=1,b=0.5 --data digits=shards/{device}.npz
      potluck train job.py --resume
      potluck train job.py --detach
    """
    settings = _settled(TrainSettings, flags, config)
    if detach:
        from potluck.cli.verbs.detached import arguments_of, train_detached

        return train_detached(arguments_of(job, flags, config, resume=resume), settings, resume=resume)
    from potluck.cli.verbs.train import train as run

    return run(job, settings, resume=resume)


@main.command(short_help="Measure what a job costs each device.")
@click.argument("job")
@verb_flags.together(*verb_flags.FLEET)
@click.option("--save", metavar="FILE", help="Write the profile there.")
@click.option("--load", metavar="FILE", help="Show a saved profile instead of measuring.")
@verb_flags.together(*verb_flags.MEASURING, verb_flags.FRESH)
@verb_flags.together(*verb_flags.JOINING, verb_flags.CONFIG, verb_flags.JSON)
def profile(job: str, config: Path | None, **flags: Any) -> int:
    """Measure what the job's model costs each device, block by block, and what the links carry.

    \b
    Examples:
      potluck profile examples/digits_cnn.py --local 1,0.5,0.25 --bandwidth 100Mbit
      potluck profile job.py --save profile.json
    """
    settings = _settled(ProfileSettings, flags, config)
    from potluck.cli.verbs.profile import profile as run

    return run(job, settings)


@main.command(short_help="Find out who should run what, and why.")
@click.argument("job")
@verb_flags.together(*verb_flags.FOR_PLANNING, *verb_flags.OF_SIMULATE)
@click.option("--out", metavar="FILE", help="Write the plan there, for --plan.")
@verb_flags.together(*verb_flags.JOINING, verb_flags.CONFIG, verb_flags.JSON)
def plan(job: str, config: Path | None, **flags: Any) -> int:
    """Find a plan for the job, and say why it is what it is. Nothing is trained.

    \b
    Examples:
      potluck plan examples/digits_cnn.py --local 1,0.5,0.25 --bandwidth 100Mbit --out plan.json
      potluck plan job.py --fleet fleet.toml --planner asteroid
    """
    settings = _settled(PlanSettings, flags, config)
    from potluck.cli.verbs.plan import plan as run

    return run(job, settings)


@main.command(short_help="Say what a plan would come to.")
@click.argument("job")
@verb_flags.together(*verb_flags.FOR_PLANNING)
@click.option("--plan", "plan_file", type=Path, metavar="FILE", help="Simulate this plan, instead of finding one.")
@click.option("--compare", is_flag=True, help="Every planner, side by side.")
@click.option("--gantt", type=Path, metavar="FILE", help="Draw a round there, as SVG.")
@click.option("--add", multiple=True, metavar="NAME=SPEED[,MEMORY]", help="What if there were this device too?")
@click.option("--remove", multiple=True, metavar="NAME", help="What if this device were gone?")
@click.option("--slow", multiple=True, metavar="NAME=X", help="What if this device took X times as long?")
@click.option("--link", multiple=True, metavar="A,B=RATE", help="What if this link (or all=RATE) were so fast?")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="What if a round had N samples?")
@verb_flags.together(*verb_flags.JOINING, verb_flags.CONFIG, verb_flags.JSON)
def simulate(job: str, config: Path | None, **flags: Any) -> int:
    """Say what training would come to, on devices you have or only think of. Nothing is trained.

    \b
    Examples:
      potluck simulate job.py --fleet fleet.toml --compare
      potluck simulate job.py --fleet fleet.toml --slow nano1=2 --link desk,pi=10Mbit --gantt round.svg
    """
    asked = {key: flags.pop(key) for key in ("add", "remove", "slow", "link", "batch_size")}
    shown = {key: flags.pop(key) for key in ("plan_file", "compare", "gantt")}
    settings = _settled(PlanSettings, flags, config)
    from potluck.cli.verbs.simulate import simulate as run

    return run(job, settings, asked, **shown)


@main.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--name", help="What this device is called.  [default: the host's name, or one like it]")
@click.option("--device", metavar="KIND", help="What computes: cpu, cuda or mps.  [default: cpu]")
@click.option(
    "--threads", metavar="N", help="CPU threads to use.  [default: all cores, shared with devices that run here]"
)
@click.option("--speed", metavar="X", help="Emulation: 0.5 computes at half speed.  [default: 1]")
@click.option("--memory", metavar="SIZE", help="Most memory to use: 512MB.  [default: no limit]")
@click.option("--hold", metavar="TIME", help="How long to wait for a coordinator that is not there.  [default: 5min]")
@click.option("--chaos", is_flag=True, default=None, help="Misbehave when a rehearsal (train --chaos) says so.")
@verb_flags.LINK_PORTS
@verb_flags.data("A data set of this device's own, which never leaves it; NAME:eval=PATH to judge by.")
@verb_flags.together(verb_flags.PLAIN, verb_flags.CONFIG)
def join(address: str, config: Path | None, **flags: Any) -> int:
    """Compute for the coordinator at HOST:PORT until its run is over.

    \b
    Example:
      potluck join 192.168.1.5:7117 --plain-network 192.168.1.0/24
    """
    settings = _settled(JoinSettings, flags, config)
    from potluck.cli.verbs.join import join as run

    return run(address, settings)


@main.command()
@click.argument("job", required=False)
@click.option("--run", "run_dir", type=Path, metavar="DIR", help="Judge a finished run instead of training.")
@click.option("--rounds", type=click.IntRange(1), default=8, show_default=True, help="How many to compare.")
@verb_flags.together(*verb_flags.FLEET, verb_flags.STALENESS, verb_flags.PLAN, verb_flags.CONFIG, verb_flags.JSON)
def verify(job: str | None, run_dir: Path | None, rounds: int, config: Path | None, **flags: Any) -> int:
    """Is it the same numbers? And was every sample used exactly once?

    Without --plan, every device gets a stage.
    With JOB: trains a few rounds on several devices and on one, and compares. With --run: checks the ledger of a run.

    \b
    Examples:
      potluck verify examples/digits_cnn.py --local 1,0.5,0.25
      potluck verify --run runs/20260131-120000
    """
    if job is not None and run_dir is None:
        settings = _settled(TrainSettings, flags, config)
        from potluck.cli.verbs.verify import verify_numbers

        return verify_numbers(job, settings, rounds)
    if run_dir is not None and job is None:
        from potluck.cli.verbs.verify import verify_run

        return verify_run(run_dir, as_json=bool(flags["json"]))
    raise InputError("verify: give either a job file or --run DIR")

"""The flags that several verbs have, in the groups in which they are listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from potluck.errors import InputError

Verb = Callable[..., Any]

CONFIG = click.option("--config", type=Path, metavar="FILE", help="Settings to start from.  [default: ./potluck.toml]")
JSON = click.option("--json", is_flag=True, default=None, help="End standard output with one JSON object.")
PLAIN = click.option(
    "--plain-network", metavar="CIDR", help="A network you trust: nothing sent over it is encrypted yet."
)
PLAN = click.option("--plan", metavar="FILE", help="Who runs what (docs/plan-format.md).  [default: see above]")
MEASURING = (
    click.option("--profile-seconds", metavar="TIME", help="Each device measures so long at most.  [default: 15s]"),
    click.option("--profile-dir", metavar="DIR", help="Where profiles are kept.  [default: ~/.cache/potluck/profiles]"),
)
STALENESS = click.option(
    "--staleness",
    metavar="N",
    help="Steps that gradients may be late: 0, or 1 and rounds overlap.  [default: the job's]",
)
FRESH = click.option("--fresh", is_flag=True, default=None, help="Measure everything, whatever is kept from before.")
SYNC = click.option(
    "--sync", metavar="POLICY", help="Devices train on their own data: ours, adsp, adacomm, local, ssp, asp, bsp."
)
LINK_PORTS = click.option(
    "--link-ports",
    metavar="FIRST-LAST",
    help="Ports of links, for a firewall: 7200-7219.  [default: any free ones]",
)
LASTING = (
    click.option("--silence", metavar="TIME", help="A device that is silent so long is lost.  [default: 2.7s]"),
    click.option(
        "--return-seconds", metavar="TIME", help="With --resume: wait so long for devices to come back.  [default: 30s]"
    ),
    click.option("--between-losses", metavar="TIME", help="About how often a device is lost.  [default: 150s]"),
    click.option("--copy-part", metavar="X", help="Part of a link that copies may always take.  [default: 0.1]"),
    click.option(
        "--checkpoint-seconds", metavar="TIME", help="Save so often, unless the job says how often.  [default: 2min]"
    ),
    click.option(
        "--replan-gain", metavar="X", help="Part of a round that another plan must save.  [default: 0.05; 1: never]"
    ),
)
CHOOSING = (
    STALENESS,
    PLAN,
    click.option("--plan-seconds", metavar="TIME", help="How long to look for a plan.  [default: 2s]"),
    click.option(
        "--tries", metavar="N", help="Try so many plans for a few rounds each, and keep the fastest.  [default: 0]"
    ),
)
JOINING = (
    click.option(
        "--listen", metavar="ADDR:PORT", help="Where devices may join.  [default: any free port, this machine only]"
    ),
    click.option("--devices", metavar="N", help="How many devices join from elsewhere.  [default: 0]"),
    click.option("--no-local", is_flag=True, default=None, help="This machine coordinates and does not compute."),
    LINK_PORTS,
    PLAIN,
)
FLEET = (
    click.option("--local", metavar="SPEEDS", help="Emulated devices here: 1,0.5,0.25 or desk=1,pi=0.25."),
    click.option("--bandwidth", metavar="RATE", help="Of every link of local devices: 100Mbit.  [default: no limit]"),
    click.option("--memory", metavar="SIZES", help="Of local devices, one for all or one each: 512MB."),
    click.option("--threads", metavar="N", help="Of each local device.  [default: 1 emulated, all cores otherwise]"),
    click.option("--carrier", metavar="NAME", help="What carries tensors: zmq or gloo.  [default: zmq]"),
    click.option("--timeout", metavar="TIME", help="Longest wait for a device, also for one to join.  [default: 5min]"),
)
FOR_PLANNING = (
    click.option("--fleet", metavar="FILE", help="Devices to plan for (docs/planning.md), scaled from this machine."),
    *FLEET,
    STALENESS,
    click.option("--planner", metavar="NAME", help="potluck, or another to compare with.  [default: potluck]"),
    click.option("--plan-seconds", metavar="TIME", help="How long to look for a plan.  [default: 5s]"),
    click.option("--load", metavar="FILE", help="A saved profile, instead of measuring."),
    *MEASURING,
    FRESH,
)


def _asked_elsewhere(context: click.Context, option: click.Parameter, value: object) -> None:
    """Points to the verb that has the option."""
    if value not in (None, False, ()):
        raise InputError(f"{option.opts[0]} belongs to potluck simulate, which takes the same job and fleet; use that")


OF_SIMULATE = tuple(
    click.option(name, is_flag=flag, hidden=True, expose_value=False, callback=_asked_elsewhere)
    for name, flag in (("--compare", True), *((f"--{n}", False) for n in ("gantt", "add", "remove", "slow", "link")))
)


def data(words: str) -> Callable[[Verb], Verb]:
    """The flag that names data sets; not given at all it is None, as others are, so that it hides no setting."""
    return click.option(
        "--data", multiple=True, metavar="NAME=PATH", help=words, callback=lambda context, option, given: given or None
    )


def together(*decorators: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    """Several options as one decorator, listed in this order."""

    def decorate(verb: Verb) -> Verb:
        for decorator in reversed(decorators):
            verb = decorator(verb)
        return verb

    return decorate

"""`potluck join`: this machine computes for a coordinator elsewhere."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import cast

from potluck.cli.failures import complain, traceback_kept
from potluck.commands.here import cores
from potluck.settings.address import LinkAddress, check_reachable, split_address
from potluck.settings.local_address import address_towards, resolve
from potluck.settings.verb_settings import JoinSettings
from potluck.types import COORDINATOR, LONGEST_NAME, DeviceKind, DeviceSpec
from potluck.wire.messages import PROOF_VARIABLE
from potluck.wire.trust import PlainTrust


def join(address: str, settings: JoinSettings) -> int:
    """Serves one run as a device; returns the exit code."""
    host, port = split_address(address, port_needed=True)
    where = f"join {address}"
    there = resolve(host, where)
    check_reachable(there, settings.plain_network, where)
    here = address_towards(there, port)
    check_reachable(here, settings.plain_network, f"{where}: this machine's address")
    spec = DeviceSpec(
        name=settings.name or default_name(socket.gethostname()),
        kind=cast(DeviceKind, settings.device),
        memory_bytes=settings.memory,
        threads=settings.threads or _choose_threads(),
        speed=settings.speed,
    )
    own = PROOF_VARIABLE in os.environ  # started by the coordinator itself
    if not own:
        complain(f"looking for the coordinator at {there}:{port}")
    from potluck.datasets.own_data import read_all
    from potluck.device.process import run_agent

    data = read_all(settings.data)

    with traceback_kept():
        hold_s = 0.0 if own else settings.hold  # our own end with the coordinator
        return run_agent(
            f"{there}:{port}", spec, LinkAddress(str(here), settings.link_ports),
            complain, hold_s, chaos=own or settings.chaos, data=data,
            insists=settings.name is not None, trust=PlainTrust.on(settings.plain_network),
        )  # fmt: skip


def default_name(host_name: str) -> str:
    """A device name from a host name: its first part, with anything odd made a dash."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", host_name.partition(".")[0]).strip("-")[:LONGEST_NAME]
    return name if name and name != COORDINATOR else "device"


def count_devices(command_lines: Iterable[Sequence[str]]) -> int:
    """How many of these processes are devices of potluck."""
    return sum(map(_is_device, command_lines))


def _is_device(command_line: Sequence[str]) -> bool:
    """Whether it is Python itself: what only began it (timeout, sudo, uv run, ssh to another machine) has its words."""
    program, *words = command_line or [""]
    runs_python = PurePath(program).name.lower().startswith(("python", "pypy"))
    return runs_python and any(PurePath(a).name == "potluck" and b == "join" for a, b in pairwise(words))


def _choose_threads() -> int:
    """All cores, or this device's part of them where others compute on this machine already; says which."""
    import psutil  # only here, so that `potluck --help` stays quick

    own = {os.getpid(), *(process.pid for process in psutil.Process().parents())}  # a script may have begun it
    running = psutil.process_iter(["cmdline"])
    others = count_devices(p.info["cmdline"] or () for p in running if p.pid not in own)
    threads = max(1, cores() // (others + 1))
    # More threads than cores make every one of them wait for the others at each operator: several times slower.
    why = ", as potluck computes on this machine already" if others else ""
    complain(f"computing with {threads} of {cores()} cores{why}; --threads changes it")
    return threads

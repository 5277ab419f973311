"""`potluck join`: this machine computes for a coordinator elsewhere."""

from __future__ import annotations

import re
import socket
from typing import cast

from potluck.address import check_reachable, split_address
from potluck.config import JoinSettings
from potluck.failures import complain, traceback_kept
from potluck.types import COORDINATOR, LONGEST_NAME, DeviceKind, DeviceSpec
from potluck.verbs.here import cores
from potluck.wire.local_address import address_towards, resolve


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
        threads=settings.threads or cores(),
        speed=settings.speed,
    )
    from potluck.runtime.agent import run_agent

    with traceback_kept():
        return run_agent(f"{there}:{port}", spec, str(here), complain)


def default_name(host_name: str) -> str:
    """A device name from a host name: its first part, with anything odd made a dash."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", host_name.partition(".")[0]).strip("-")[:LONGEST_NAME]
    return name if name and name != COORDINATOR else "device"

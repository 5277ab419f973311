"""What a fleet asks of the network: the line of every device, and the rooms they stand in. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from benchmarks.testbed.cgroups import LEAST_QUOTA_US, LONGEST_PERIOD_US
from potluck.errors import InputError
from potluck.types import COORDINATOR, Fleet

NETWORK = IPv4Network("10.77.0.0/24")  # only ever inside the namespaces
MOST_DEVICES = 200
LEAST_CORES = LEAST_QUOTA_US / LONGEST_PERIOD_US


@dataclass(frozen=True)
class Topology:
    """Devices on one bridge, or on two that are joined by a trunk. Bytes/s in each direction; None: not limited."""

    lines: dict[str, float | None]  # every device, and the coordinator
    rooms: tuple[tuple[str, ...], ...]  # one or two
    trunk: float | None = None

    def address(self, device: str) -> IPv4Address:
        """The coordinator is the first in the network, the devices follow in fleet order."""
        return NETWORK[1 + list(self.lines).index(device)]


def topology(fleet: Fleet, coordinator_bytes_s: float | None = None, *, where: str = "fleet") -> Topology:
    """The network of a fleet. A link slower than the lines of both its ends leads from one room to the other.

    `where` is what a refusal begins with: the file that the fleet came from.
    """
    _check_possible(fleet, where)
    names = [COORDINATOR, *(d.name for d in fleet.devices)]
    lines: dict[str, float | None] = {COORDINATOR: coordinator_bytes_s}
    for name in names[1:]:
        lines[name] = _or_none(max(_rate(fleet, name, other) for other in names if other != name))
    far = {
        frozenset((a, b)): _rate(fleet, a, b)
        for number, a in enumerate(names)
        for b in names[number + 1 :]
        if _rate(fleet, a, b) < min(lines[n] or math.inf for n in (a, b) if n != COORDINATOR)
    }
    if not far:
        return Topology(lines, (tuple(names),))
    first = tuple(name for name in names if frozenset((names[0], name)) not in far)
    second = tuple(name for name in names if name not in first)
    if set(far) != {frozenset((a, b)) for a in first for b in second} or len(set(far.values())) > 1:
        raise InputError(
            f"{where}: the links that differ do not make two rooms; give every pair from one room to the other the "
            "same bandwidth (the coordinator stands in a room too), or give every link of a device the bandwidth of "
            "its line"
        )
    return Topology(lines, (first, second), next(iter(far.values())))


def _rate(fleet: Fleet, a: str, b: str) -> float:
    return fleet.link(a, b).bandwidth_bytes_s or math.inf


def _or_none(rate: float) -> float | None:
    return None if rate == math.inf else rate


def _check_possible(fleet: Fleet, where: str) -> None:
    if len(fleet.devices) > MOST_DEVICES:
        raise InputError(f"{where}: {len(fleet.devices)} devices; a testbed has room for {MOST_DEVICES}")
    for device in fleet.devices:
        if device.speed < LEAST_CORES:
            raise InputError(
                f"{where}: device {device.name} has speed {device.speed:g}; "
                f"a testbed gives at least {LEAST_CORES} cores"
            )
    if fleet.medium != "full":
        raise InputError(f"{where}: medium {fleet.medium!r} cannot be built; a testbed has full-duplex links only")
    if fleet.latency_s or any(link.latency_s for link in fleet.links):
        raise InputError(f"{where}: a testbed adds no latency; leave it out, and put benchmarks/proxy.py in between")

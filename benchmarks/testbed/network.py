"""Network namespaces on bridges, and lines of a given bandwidth between them.

The bridges live in a namespace of their own: nothing of this machine's own network is touched, and what is left of a
testbed is gone with its namespaces. In a device the line is called eth0, at the bridge p0, p1, …
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Mapping

from benchmarks.testbed.errors import TestbedError, TestbedMissing
from benchmarks.testbed.topology import NETWORK, Topology

_TOOL_S = 20.0
_KERNEL_LACKS = ("kind is unknown", "Unknown device type", "not supported")
_handles = itertools.count()
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
_LARGEST_PACKET = 60_000
_LEAST_BURST = 8 * 1024
_BURST_S = 0.0013
_TIMER_S = 0.0001  # how late the kernel may be without losing bandwidth


def tool(name: str) -> str:
    """The path of a program of iproute2."""
    path = shutil.which(name, path=_SYSTEM_FOLDERS)
    if path is None:
        raise TestbedMissing(f"the testbed needs the program {name!r}: apt-get install iproute2")
    return path


def call(name: str, *arguments: str) -> str:
    """What a program of iproute2 says; a TestbedError with its last line when it fails."""
    done = subprocess.run([tool(name), *arguments], capture_output=True, text=True, timeout=_TOOL_S)
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        if any(words in why for words in _KERNEL_LACKS):
            raise TestbedMissing(f"the kernel lacks what the testbed needs ({name} {' '.join(arguments)}: {why})")
        raise TestbedError(f"{name} {' '.join(arguments)}: {why}")
    return done.stdout


def burst_bytes(rate: float) -> int:
    """How much may pass at once at a rate in bytes/s: little, as it is for free after a pause, but a few packets."""
    return round(max(_LEAST_BURST, min(rate * _BURST_S, _LARGEST_PACKET * 8 / 7), rate * _TIMER_S))


def packet_bytes(rate: float | None) -> int:
    """What the kernel may hand to a line in one piece. It must fit the burst, or is split at some cost of CPU time."""
    return _LARGEST_PACKET if rate is None else min(_LARGEST_PACKET, burst_bytes(rate) * 7 // 8)


def queue_bytes(rate: float) -> int:
    """What waits at the end of a line before packets are dropped: 50 ms, within what network equipment has."""
    return round(min(max(rate * 0.05, 256 * 1024), 2 * 1024 * 1024))


class Network:
    """The namespaces of one testbed. `spaces` names that of every device."""

    def __init__(self, base: str, topology: Topology) -> None:
        self._topology = topology
        self._switch = f"{base}@switch"
        self.spaces = {device: f"{base}.{device}" for device in topology.lines}
        self._ports = {device: f"p{number}" for number, device in enumerate(topology.lines)}
        self.rates: dict[str, float | None] = {}  # of the lines as they are

    def build(self) -> None:
        """Makes everything; when it fails, `remove_spaces` removes what is there."""
        call("ip", "netns", "add", self._switch)
        for number, room in enumerate(self._topology.rooms):
            bridge = f"room{number}"
            self._at_switch("link", "add", bridge, "type", "bridge")
            self._at_switch("link", "set", bridge, "up")
            for device in room:
                self._plug(device, bridge)
        if len(self._topology.rooms) == 2:
            self._at_switch("link", "add", "trunk0", "type", "veth", "peer", "name", "trunk1")
            for number in range(2):
                self._at_switch("link", "set", f"trunk{number}", "master", f"room{number}", "up")
            self.set_trunk(self._topology.trunk)
        for device, rate in self._topology.lines.items():
            self.set_rate(device, rate)

    def _plug(self, device: str, bridge: str) -> None:
        space, port = self.spaces[device], self._ports[device]
        call("ip", "netns", "add", space)
        call("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", self._switch)
        self._at_switch("link", "set", port, "master", bridge, "up", "addrgenmode", "none")
        call(
            "ip", "-n", space, "address", "add", f"{self._topology.address(device)}/{NETWORK.prefixlen}", "dev", "eth0"
        )
        call("ip", "-n", space, "link", "set", "eth0", "up", "addrgenmode", "none")
        call("ip", "-n", space, "link", "set", "lo", "up")

    def set_rate(self, device: str, rate: float | None) -> None:
        """The line of a device, in both directions, in bytes/s."""
        call("ip", "-n", self.spaces[device], "link", "set", "eth0", "gso_max_size", str(packet_bytes(rate)))
        _shape(self.spaces[device], "eth0", rate)
        _shape(self._switch, self._ports[device], rate)
        self.rates[device] = rate

    def set_trunk(self, rate: float | None) -> None:
        """The line between the two rooms, in both directions, in bytes/s."""
        for number in range(2):
            _shape(self._switch, f"trunk{number}", rate)

    def set_plugged(self, device: str, plugged: bool) -> None:
        """Pulls the cable of a device, or puts it back."""
        self._at_switch("link", "set", self._ports[device], "up" if plugged else "down")

    def set_deaf(self, source: str, target: str, deaf: bool) -> None:
        """Loses whatever one device sends to another, silently; the way back stays open."""
        target_address, space = str(self._topology.address(target)), self.spaces[source]
        if deaf:
            # The address of its own port: the bridge takes such a packet for itself and has no use for it.
            nowhere = self._facts(self._ports[source])["address"]
            neighbour = ("lladdr", str(nowhere), "dev", "eth0", "nud", "permanent")
            call("ip", "-n", space, "neighbour", "replace", target_address, *neighbour)
        else:
            call("ip", "-n", space, "neighbour", "del", target_address, "dev", "eth0")

    def bytes_sent(self, device: str) -> int:
        """What a device has put on its line, headers included."""
        return int(self._facts(self._ports[device])["stats64"]["rx"]["bytes"])

    def bytes_received(self, device: str) -> int:
        """What has come to a device over its line, headers included."""
        return int(self._facts(self._ports[device])["stats64"]["tx"]["bytes"])

    def _facts(self, port: str) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        found: list[Mapping[str, Mapping[str, Mapping[str, int]]]] = json.loads(
            self._at_switch("-s", "-j", "link", "show", "dev", port)
        )
        return found[0]

    def _at_switch(self, *arguments: str) -> str:
        return call("ip", "-n", self._switch, *arguments)


def _shape(space: str, interface: str, rate: float | None) -> None:
    if rate is None:
        if "tbf" in call("tc", "-n", space, "qdisc", "show", "dev", interface):
            call("tc", "-n", space, "qdisc", "del", "dev", interface, "root")
        return
    # A new one each time, which a new handle makes it: a packet in the old one's queue may be above the new burst, and
    # would stay at its head for ever. What is queued is lost, and sent again as after any loss.
    handle = ("handle", f"{next(_handles) % 0x7FFF + 1:x}:")
    bits = ("rate", f"{round(rate * 8)}bit", "burst", str(burst_bytes(rate)), "limit", str(queue_bytes(rate)))
    call("tc", "-n", space, "qdisc", "replace", "dev", interface, "root", *handle, "tbf", *bits)


def spaces() -> list[str]:
    """The names of all network namespaces of this machine."""
    return [line.split()[0] for line in call("ip", "netns", "list").splitlines() if line.strip()]


def remove_space(space: str) -> None:
    """Removes a namespace; its ends of lines go with it, and the other ends with them."""
    call("ip", "netns", "delete", space)

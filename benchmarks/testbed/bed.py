"""A fleet of devices on this machine that the code under test cannot tell from real ones."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from benchmarks.testbed import cgroups, leftovers
from benchmarks.testbed.errors import TestbedError, TestbedMissing
from benchmarks.testbed.network import Network, tool
from benchmarks.testbed.topology import topology
from potluck.commands.here import cores as cores_here
from potluck.errors import InputError
from potluck.settings.fleet_file import read_fleet
from potluck.types import COORDINATOR, Fleet

_LAUNCH = Path(__file__).with_name("launch.py")
_NET_ADMIN, _SYS_ADMIN = 12, 21  # numbers of capabilities
_REAP_S = 10.0
_ENTER_S = 20.0
Output = IO[bytes] | int | None


def check_machine() -> cgroups.Cgroups:
    """The cgroups of this machine; TestbedMissing says what a testbed needs and does not find here."""
    if sys.platform != "linux" or not hasattr(os, "geteuid"):
        raise TestbedMissing("the testbed needs Linux: use potluck's own --local devices here")
    if os.geteuid() != 0:
        raise TestbedMissing(f"the testbed needs root for namespaces and cgroups: run it with {_with_sudo()}")
    for name in ("ip", "tc"):
        tool(name)
    groups = cgroups.find()
    if not _has_capabilities(Path("/proc/self/status").read_text()) or not groups.writable():
        raise TestbedMissing("the testbed may not make namespaces or cgroups here: run it outside the container")
    return groups


def _with_sudo() -> str:
    """What starts this program as root: sudo would look for python elsewhere, and find one without potluck."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = "" if spec is None else f"{spec.name.removesuffix('.__main__')} "
    return f"sudo {shlex.quote(sys.executable)} -m {module}…"


def _has_capabilities(status: str) -> bool:
    """Whether a process may do what root of a whole machine may, by its file `status`; root of a container may not."""
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    return all(effective >> number & 1 for number in (_NET_ADMIN, _SYS_ADMIN))


class Testbed:
    """The devices of a fleet and a coordinator's place; a context that leaves nothing behind.

    A device's speed is its CPU quota in cores, its memory the limit of all its processes together. The coordinator has
    no limits unless they are given.
    """

    __test__ = False  # its name is no invitation to pytest

    def __init__(
        self, fleet: Fleet | Path | str, *, name: str = "bed", coordinator_cores: float | None = None,
        coordinator_bytes_s: float | None = None,
    ) -> None:  # fmt: skip
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise InputError(f"testbed name {name!r}: give letters, digits, - and _")
        self.fleet = fleet if isinstance(fleet, Fleet) else read_fleet(Path(fleet))
        where = "fleet" if isinstance(fleet, Fleet) else str(fleet)
        self._check_cores(where)
        self._topology = topology(self.fleet, coordinator_bytes_s, where=where)
        self._cgroups = check_machine()
        self._base = leftovers.base_name(name)
        self._network = Network(self._base, self._topology)
        self._cores: dict[str, float | None] = {COORDINATOR: coordinator_cores}
        self._cores |= {device.name: device.speed for device in self.fleet.devices}
        self._memory = {device.name: device.memory_bytes or None for device in self.fleet.devices}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._cut: set[str] = set()
        self._partitions: set[tuple[str, str]] = set()

    def _check_cores(self, where: str) -> None:
        wanted, here = sum(device.speed for device in self.fleet.devices), cores_here()
        if wanted > here:
            raise InputError(
                f"{where}: its devices want {wanted:.2f} cores and this machine has {here}; lower the speeds"
            )

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, in fleet order, without the coordinator."""
        return tuple(device.name for device in self.fleet.devices)

    def __enter__(self) -> Testbed:
        leftovers.remove_all(self._cgroups)
        if self._base in self._cgroups.beds():
            raise TestbedError(f"{self._base} is there already; give each testbed of a process its own name")
        try:
            self._cgroups.make(self._base, self._cores)
            for device, cores in self._cores.items():
                self._cgroups.set_cores(self._folder(device), cores)
                self._cgroups.set_memory(self._folder(device), self._memory.get(device))
            for device in self.devices:  # the coordinator stands for another machine: it takes nothing from them
                self._cgroups.prefer(self._folder(device))
            self._network.build()
        except BaseException as error:
            self._remove()
            if isinstance(error, OSError):
                raise TestbedMissing(
                    f"the testbed cannot make its cgroups ({error}): run it outside a container"
                ) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        try:
            leftovers.remove(self._base, self._cgroups)
        finally:
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_REAP_S)

    def start(
        self, device: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        stdin: Output = subprocess.DEVNULL, stdout: Output = None, stderr: Output = None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Starts a program on a device (or the coordinator); it ends with the testbed at the latest."""
        doors = [str(path) for path in self._cgroups.doors(self._folder(device))]
        inside = [tool("ip"), "netns", "exec", self._network.spaces[device], *argv]
        entered, entering = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LAUNCH), str(entering), *doors, "--", *inside], pass_fds=[entering],
                env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True,
            )  # fmt: skip
            self._processes.append(process)
            os.close(entering)
            if not select.select([entered], [], [], _ENTER_S)[0]:
                raise TestbedError(f"{device}: a process did not get into its cgroups in {_ENTER_S:.0f} s; try again")
        finally:
            os.close(entered)
        return process

    def address(self, device: str) -> str:
        """The IPv4 address of a device, or of the coordinator."""
        self._folder(device)
        return str(self._topology.address(device))

    def set_quota(self, device: str, cores: float | None) -> None:
        """Gives a device so many cores from now on; None: no limit."""
        self._cgroups.set_cores(self._folder(device), cores)

    def set_memory(self, device: str, size_bytes: int | None) -> None:
        """Gives a device so much memory from now on; None: no limit. What it has in use must fit."""
        try:
            self._cgroups.set_memory(self._folder(device), size_bytes)
        except OSError as error:
            raise TestbedError(f"{device} has more in use than {size_bytes} bytes ({error}); give it more") from error

    def set_bandwidth(self, device: str, bytes_s: float | None) -> None:
        """Lets the line of a device carry so much in each direction from now on; None: no limit."""
        self._folder(device)
        self._network.set_rate(device, bytes_s)

    def bandwidth(self, device: str) -> float | None:
        """What the line of a device carries in each direction; None: no limit."""
        self._folder(device)
        return self._network.rates[device]

    def set_trunk(self, bytes_s: float | None) -> None:
        """Lets the line between two rooms carry so much in each direction from now on; None: no limit."""
        if len(self._topology.rooms) != 2:
            raise TestbedError("set_trunk: this fleet stands in one room; use set_bandwidth")
        self._network.set_trunk(bytes_s)

    def freeze(self, device: str) -> None:
        """Stops every process of a device where it is. Its network stays up."""
        self._cgroups.freeze(self._folder(device), True)

    def thaw(self, device: str) -> None:
        """Lets a frozen device go on."""
        self._cgroups.freeze(self._folder(device), False)

    def kill(self, device: str) -> None:
        """Ends every process of a device at once. Its kernel still says goodbye; for a power cut, cut it first."""
        self._cgroups.kill(self._folder(device))

    def cut(self, device: str) -> None:
        """Pulls the cable of a device."""
        self._folder(device)
        self._network.set_plugged(device, False)
        self._cut.add(device)

    def partition(self, source: str, target: str) -> None:
        """Loses everything that goes from one device to another, silently. The other direction stays open."""
        self._folder(source), self._folder(target)
        self._network.set_deaf(source, target, True)
        self._partitions.add((source, target))

    def restore(self, *devices: str) -> None:
        """Undoes every cut and partition of these devices, or all of them when none is named."""
        for device in devices:
            self._folder(device)
        for device in [d for d in self._cut if not devices or d in devices]:
            self._network.set_plugged(device, True)
            self._cut.discard(device)
        for pair in [p for p in self._partitions if not devices or set(p) & set(devices)]:
            self._network.set_deaf(*pair, False)
            self._partitions.discard(pair)

    def processes(self, device: str) -> list[int]:
        """The process numbers of everything that runs on a device."""
        return self._cgroups.processes(self._folder(device))

    def cpu_seconds(self, device: str) -> float:
        """CPU time that a device has used."""
        return self._cgroups.cpu_seconds(self._folder(device))

    def throttled(self, device: str) -> float:
        """Seconds that threads of a device were held back by its quota, each counted for itself."""
        return self._cgroups.throttled_seconds(self._folder(device))

    def peak_memory(self, device: str) -> int:
        """The most memory that a device has had in use, in bytes, the cache of files that it read included."""
        return self._cgroups.peak_memory(self._folder(device))

    def oom_kills(self, device: str) -> int:
        """How many processes of a device were ended because its memory was full."""
        return self._cgroups.oom_kills(self._folder(device))

    def bytes_sent(self, device: str) -> int:
        """What a device has sent, in bytes on the wire."""
        self._folder(device)
        return self._network.bytes_sent(device)

    def bytes_received(self, device: str) -> int:
        """What a device has received, in bytes on the wire."""
        self._folder(device)
        return self._network.bytes_received(device)

    def _folder(self, device: str) -> str:
        if device not in self._cores:
            raise TestbedError(f"the testbed has no device {device!r}; it has {', '.join(self._cores)}")
        return f"{self._base}/{device}"

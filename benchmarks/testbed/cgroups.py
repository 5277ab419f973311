"""What holds a device's processes back: CPU quota, memory limit, freezer. Both kinds of cgroups behind one interface.

A *folder* is the path of a group below the root of a hierarchy, like `potluck-12-345.bed/nano-1`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from benchmarks.testbed.errors import TestbedError, TestbedMissing

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000  # shorter costs overhead, the usual 100 ms makes steps jump
LEAST_QUOTA_US = 1_000  # the kernel's
LONGEST_PERIOD_US = 1_000_000  # likewise
PREFERENCE = 20  # times the usual weight
_SETTLE_S = 20.0


def quota_us(cores: float) -> tuple[int, int]:
    """(quota, period) in µs of so many cores; a period longer than usual where the quota would be below the least."""
    if not cores >= LEAST_QUOTA_US / LONGEST_PERIOD_US:
        raise TestbedError(f"a quota of {cores} cores; give at least {LEAST_QUOTA_US / LONGEST_PERIOD_US}")
    period = max(PERIOD_US, round(LEAST_QUOTA_US / cores))
    return max(LEAST_QUOTA_US, round(cores * period)), period


def table(text: str) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    return {line.split()[0]: int(line.split()[1]) for line in text.splitlines() if len(line.split()) == 2}


class Cgroups(Protocol):
    """One kind of cgroups."""

    def writable(self) -> bool: ...
    def make(self, bed: str, devices: Iterable[str]) -> None: ...
    def doors(self, folder: str) -> list[Path]:
        """The files that a process writes 0 to, to be inside."""
        ...

    def prefer(self, folder: str) -> None:
        """Gives it the cores before others that have no such right, whenever it wants them."""
        ...

    def set_cores(self, folder: str, cores: float | None) -> None: ...
    def set_memory(self, folder: str, size: int | None) -> None: ...
    def freeze(self, folder: str, frozen: bool) -> None: ...
    def processes(self, folder: str) -> list[int]: ...
    def kill(self, folder: str) -> None: ...
    def cpu_seconds(self, folder: str) -> float: ...
    def throttled_seconds(self, folder: str) -> float: ...
    def peak_memory(self, folder: str) -> int: ...
    def oom_kills(self, folder: str) -> int: ...
    def beds(self) -> list[str]:
        """The names of all groups directly below a root."""
        ...

    def remove(self, bed: str) -> None: ...


class CgroupsV1:
    """A hierarchy for each controller."""

    _CONTROLLERS = ("cpu", "cpuacct", "memory", "freezer")

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def writable(self) -> bool:
        return all(os.access(self._root / controller, os.W_OK) for controller in self._CONTROLLERS)

    def make(self, bed: str, devices: Iterable[str]) -> None:
        """A group for the testbed in every hierarchy, and in it one for every device."""
        for controller in self._CONTROLLERS:
            (self._root / controller / bed).mkdir()
        # All devices together would count as much as one process outside: only the quota is to hold them back.
        (self._root / "cpu" / bed / "cpu.shares").write_text("262144")
        for device in devices:
            for controller in self._CONTROLLERS:
                (self._root / controller / bed / device).mkdir()

    def doors(self, folder: str) -> list[Path]:
        return [self._root / controller / folder / "cgroup.procs" for controller in self._CONTROLLERS]

    def prefer(self, folder: str) -> None:
        self._file("cpu", folder, "cpu.shares").write_text(str(PREFERENCE * 1024))

    def set_cores(self, folder: str, cores: float | None) -> None:
        quota, period = (-1, PERIOD_US) if cores is None else quota_us(cores)
        self._file("cpu", folder, "cpu.cfs_quota_us").write_text("-1")  # so that no mix of old and new is refused
        self._file("cpu", folder, "cpu.cfs_period_us").write_text(str(period))
        self._file("cpu", folder, "cpu.cfs_quota_us").write_text(str(quota))

    def set_memory(self, folder: str, size: int | None) -> None:
        value = "-1" if size is None else str(size)
        with_swap = self._file("memory", folder, "memory.memsw.limit_in_bytes")
        if with_swap.exists():
            with_swap.write_text("-1")  # it may never be below the other
        self._file("memory", folder, "memory.limit_in_bytes").write_text(value)
        if with_swap.exists():
            with_swap.write_text(value)

    def freeze(self, folder: str, frozen: bool) -> None:
        state = self._file("freezer", folder, "freezer.state")
        wanted = "FROZEN" if frozen else "THAWED"
        state.write_text(wanted)
        _wait(lambda: state.read_text().strip() == wanted, f"{folder} is not {wanted.lower()}")

    def processes(self, folder: str) -> list[int]:
        return [int(line) for line in self._file("freezer", folder, "cgroup.procs").read_text().split()]

    def kill(self, folder: str) -> None:
        # While frozen no process can start another or end, so that no number is given to another process.
        self.freeze(folder, True)
        for process in self.processes(folder):
            os.kill(process, signal.SIGKILL)
        self.freeze(folder, False)
        _wait(lambda: not self.processes(folder), f"{folder} still has processes")

    def cpu_seconds(self, folder: str) -> float:
        return int(self._file("cpuacct", folder, "cpuacct.usage").read_text()) / 1e9

    def throttled_seconds(self, folder: str) -> float:
        return table(self._file("cpu", folder, "cpu.stat").read_text())["throttled_time"] / 1e9

    def peak_memory(self, folder: str) -> int:
        return int(self._file("memory", folder, "memory.max_usage_in_bytes").read_text())

    def oom_kills(self, folder: str) -> int:
        return table(self._file("memory", folder, "memory.oom_control").read_text()).get("oom_kill", 0)

    def beds(self) -> list[str]:
        return sorted({path.name for c in self._CONTROLLERS for path in (self._root / c).iterdir() if path.is_dir()})

    def remove(self, bed: str) -> None:
        for folder in _inside(self._root / "freezer" / bed):
            self.kill(f"{bed}/{folder}")
        for controller in self._CONTROLLERS:
            _remove(self._root / controller / bed)

    def _file(self, controller: str, folder: str, name: str) -> Path:
        return self._root / controller / folder / name


class CgroupsV2:
    """One hierarchy for all controllers."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def writable(self) -> bool:
        return os.access(self._root, os.W_OK)

    def make(self, bed: str, devices: Iterable[str]) -> None:
        """A group for the testbed, and in it one for every device."""
        for parent in (self._root, self._root / bed):
            if parent != self._root:
                parent.mkdir()
            (parent / "cgroup.subtree_control").write_text("+cpu +memory")
        (self._root / bed / "cpu.weight").write_text("10000")  # only the quota is to hold the devices back
        for device in devices:
            (self._root / bed / device).mkdir()

    def doors(self, folder: str) -> list[Path]:
        return [self._root / folder / "cgroup.procs"]

    def prefer(self, folder: str) -> None:
        (self._root / folder / "cpu.weight").write_text(str(PREFERENCE * 100))

    def set_cores(self, folder: str, cores: float | None) -> None:
        quota, period = ("max", PERIOD_US) if cores is None else quota_us(cores)
        (self._root / folder / "cpu.max").write_text(f"{quota} {period}")

    def set_memory(self, folder: str, size: int | None) -> None:
        (self._root / folder / "memory.max").write_text("max" if size is None else str(size))
        swap = self._root / folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("max" if size is None else "0")

    def freeze(self, folder: str, frozen: bool) -> None:
        (self._root / folder / "cgroup.freeze").write_text(str(int(frozen)))
        events = self._root / folder / "cgroup.events"
        _wait(lambda: table(events.read_text())["frozen"] == frozen, f"{folder} does not follow its freezer")

    def processes(self, folder: str) -> list[int]:
        return [int(line) for line in (self._root / folder / "cgroup.procs").read_text().split()]

    def kill(self, folder: str) -> None:
        (self._root / folder / "cgroup.freeze").write_text("0")
        (self._root / folder / "cgroup.kill").write_text("1")
        _wait(lambda: not self.processes(folder), f"{folder} still has processes")

    def cpu_seconds(self, folder: str) -> float:
        return table((self._root / folder / "cpu.stat").read_text())["usage_usec"] / 1e6

    def throttled_seconds(self, folder: str) -> float:
        return table((self._root / folder / "cpu.stat").read_text())["throttled_usec"] / 1e6

    def peak_memory(self, folder: str) -> int:
        return int((self._root / folder / "memory.peak").read_text())

    def oom_kills(self, folder: str) -> int:
        return table((self._root / folder / "memory.events").read_text())["oom_kill"]

    def beds(self) -> list[str]:
        return sorted(path.name for path in self._root.iterdir() if path.is_dir())

    def remove(self, bed: str) -> None:
        for folder in _inside(self._root / bed):
            self.kill(f"{bed}/{folder}")
        _remove(self._root / bed)


def find(root: Path = ROOT) -> Cgroups:
    """The cgroups of this machine."""
    if (root / "cgroup.controllers").exists():
        missing = {"cpu", "memory"} - set((root / "cgroup.controllers").read_text().split())
        if not missing:
            return CgroupsV2(root)
        raise TestbedMissing(f"the testbed needs the cgroup controller {min(missing)!r}: start the kernel with it")
    without = [c for c in CgroupsV1._CONTROLLERS if not (root / c / "cgroup.procs").exists()]
    if without:
        raise TestbedMissing(f"the testbed needs the cgroup controller {without[0]!r} at {root / without[0]}: mount it")
    return CgroupsV1(root)


def _inside(group: Path) -> list[str]:
    return sorted(path.name for path in group.iterdir() if path.is_dir()) if group.exists() else []


def _remove(group: Path) -> None:
    for name in _inside(group):
        _remove_one(group / name)
    if group.exists():
        _remove_one(group)


def _remove_one(group: Path) -> None:
    def gone() -> bool:
        try:
            group.rmdir()
        except OSError:
            return not group.exists()  # busy for a moment after its last process
        return True

    _wait(gone, f"{group} cannot be removed")


def _wait(true: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while not true():
        if time.monotonic() > deadline:
            raise TestbedError(f"{otherwise} after {_SETTLE_S:.0f} s; see what its processes wait for")
        time.sleep(0.002)

"""What this machine brings to a run: its devices, where it listens, where the run is kept."""

from __future__ import annotations

import os
from pathlib import Path

from potluck.coordinator.run_folder.process_record import check_free
from potluck.errors import InputError
from potluck.metrics.records import RECORDS
from potluck.settings.address import ANY_PORT, check_reachable, split_address
from potluck.settings.local_address import resolve
from potluck.settings.verb_settings import TrainSettings
from potluck.types import DeviceSpec, Fleet

RUNS = Path("runs")
ON_THIS_MACHINE = "127.0.0.1:0"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def crowding(fleet: Fleet | None) -> str | None:
    """That emulated devices take all cores of this machine, in words: they then wait for each other."""
    devices = fleet.devices if fleet is not None else ()
    wanted, there = sum(d.threads * d.speed for d in devices), cores()
    if len(devices) < 2 or wanted < there:
        return None
    return (
        f"{len(devices)} emulated devices need {wanted:g} cores and this machine has {there}: "
        "rounds take longer than on machines of their own"
    )


def local_fleet(settings: TrainSettings) -> Fleet | None:
    """The devices to start here: emulated ones, or the machine itself, or none."""
    if settings.no_local:
        if settings.bandwidth is not None:
            raise InputError("--bandwidth slows down the links of local devices; leave it out with --no-local")
        return None
    return own_fleet(settings)


def own_fleet(settings: TrainSettings) -> Fleet:
    """The emulated devices, or the machine itself."""
    if settings.local is None:
        memory, threads = settings.memory[0], settings.threads or cores()
        devices = [DeviceSpec(name="local", memory_bytes=memory, threads=threads)]
    else:
        memories = settings.memory * (len(settings.local) if len(settings.memory) == 1 else 1)
        devices = [
            DeviceSpec(name=name, speed=speed, memory_bytes=memory, threads=settings.threads or 1)
            for (name, speed), memory in zip(settings.local, memories, strict=True)
        ]
    return Fleet(devices=tuple(devices), bandwidth_bytes_s=settings.bandwidth)


def listen_address(settings: TrainSettings) -> str:
    """Where the coordinator listens; off this machine only on a network declared plain."""
    if settings.listen is None:
        return ON_THIS_MACHINE
    host, port = split_address(settings.listen, port_needed=False)
    where = f"--listen {settings.listen}"
    address = resolve(host, where)
    check_reachable(address, settings.plain_network, where)
    return f"{address}:{port}"


def tell_local_devices(settings: TrainSettings) -> None:
    """Lets the devices that are started here know where they may listen; their command line does not say so."""
    if settings.plain_network is not None:
        os.environ["POTLUCK_PLAIN_NETWORK"] = str(settings.plain_network)
    if settings.link_ports != ANY_PORT:
        os.environ["POTLUCK_LINK_PORTS"] = str(settings.link_ports)


def check_run_dir(run_dir: Path, *, resume: bool) -> None:
    """Raises if a run cannot be kept there, or none is there to go on with. Better now than with devices waiting."""
    if resume and not (run_dir / RECORDS).is_file():
        raise InputError(f"--resume: {run_dir} holds no run; give the folder of one, or start without --resume")
    if not resume and (run_dir / RECORDS).exists():
        raise InputError(f"--run-dir: {run_dir} holds a run already; go on with --resume, or give another folder")
    check_free(run_dir)
    there = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--run-dir: {there} cannot be written to; give another folder")


def newest_run(parent: Path = RUNS) -> Path:
    """The folder of the run that was started last."""
    runs = [path.parent for path in parent.glob(f"*/{RECORDS}")]
    if not runs:
        raise InputError(f"--resume: no run in {parent.resolve()}; name the folder of one with --run-dir")
    return max(runs, key=lambda path: (path / RECORDS).stat().st_mtime)

"""potluck on a testbed: an agent on every device, a command of potluck in the coordinator's place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.testbed.bed import Testbed
from benchmarks.testbed.topology import NETWORK
from potluck.types import COORDINATOR, DeviceSpec

PORT = 7117
OWN_BYTES = 400 * 10**6  # what an agent needs for itself, before anything of a job
_SOURCES = Path(__file__).parents[2]


def coordinator_address(bed: Testbed) -> str:
    """Where `command` listens."""
    return f"{bed.address(COORDINATOR)}:{PORT}"


def environment(threads: int = 1) -> dict[str, str]:
    """This process's environment, with so many threads for arithmetic and this potluck before any other."""
    path = os.pathsep.join([str(_SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)
    }  # fmt: skip


def join_command(spec: DeviceSpec, address: str) -> list[str]:
    """What the owner of a device would type. Its memory, less what an agent needs for itself, is for the job."""
    command = [sys.executable, "-m", "potluck", "join", address, "--name", spec.name, "--threads", str(spec.threads)]
    if spec.memory_bytes:
        command += ["--memory", str(max(spec.memory_bytes - OWN_BYTES, spec.memory_bytes // 2))]
    return [*command, "--plain-network", str(NETWORK)]


def join_all(
    bed: Testbed, address: str | None = None, *, logs: Path, devices: Sequence[str] | None = None,
    more: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, subprocess.Popen[bytes]]:  # fmt: skip
    """Starts `potluck join` on every device, or on these; what each says goes to DEVICE.log in the folder `logs`.

    `more` are words that some devices' owners add to the command.
    """
    logs.mkdir(parents=True, exist_ok=True)
    agents = {}
    for spec in bed.fleet.devices:
        if devices is None or spec.name in devices:
            with (logs / f"{spec.name}.log").open("ab") as log:
                command = [*join_command(spec, address or coordinator_address(bed)), *(more or {}).get(spec.name, ())]
                agents[spec.name] = bed.start(
                    spec.name, command, env=environment(spec.threads),
                    stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
    return agents


def potluck_command(bed: Testbed, verb: Sequence[str]) -> list[str]:
    """`potluck train job.py …` and its like, as the coordinator of all devices of the testbed."""
    joining = ["--listen", coordinator_address(bed), "--devices", str(len(bed.devices)), "--no-local"]
    return [sys.executable, "-m", "potluck", *verb, *joining, "--plain-network", str(NETWORK)]


def start_potluck(
    bed: Testbed,
    verb: Sequence[str],
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts such a command in the coordinator's place."""
    settings = {**environment(), **(env or {})}
    return bed.start(COORDINATOR, potluck_command(bed, verb), env=settings, stdout=stdout, stderr=stderr)

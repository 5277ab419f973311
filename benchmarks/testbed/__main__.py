"""Runs potluck on a testbed, with an agent on every device of a fleet file.

    sudo .venv/bin/python -m benchmarks.testbed benchmarks/fleets/lab-100.toml -- train examples/digits_cnn.py
    sudo .venv/bin/python -m benchmarks.testbed --clean

At the end it says what each device used, on standard error. --clean removes what dead owners of testbeds left.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.testbed import leftovers
from benchmarks.testbed.agents import join_all, start_potluck
from benchmarks.testbed.bed import Testbed, check_machine
from benchmarks.testbed.signals import ended_by_signals
from potluck.errors import InputError, PotluckError
from potluck.types import COORDINATOR
from potluck.units import size_text

_POLL_S = 0.2
_GRACE_S = 30.0  # for the coordinator to notice what happened to a device, and for devices to end after it


@click.command()
@click.argument("fleet", required=False, type=Path)
@click.argument("verb", nargs=-1)
@click.option("--clean", is_flag=True, help="Remove what is left of testbeds whose owner is dead.")
@click.option("--logs", type=Path, metavar="DIR", help="Where agents write what they say.  [default: a new folder]")
def main(fleet: Path | None, verb: tuple[str, ...], clean: bool, logs: Path | None) -> None:
    """Run potluck's VERB as the coordinator of all devices of FLEET, each in its own namespace and cgroups.

    It needs root. FLEET is a fleet file; VERB is a verb of potluck that takes --listen, like train, plan or profile.
    The verb, its job and its options come after `--`.

    \b
    Examples:
      sudo .venv/bin/python -m benchmarks.testbed benchmarks/fleets/lab-100.toml -- train examples/digits_cnn.py
      sudo .venv/bin/python -m benchmarks.testbed --clean
    """
    ended_by_signals()
    try:
        if clean:
            removed = leftovers.remove_all(check_machine())
            print("\n".join(f"removed {name}" for name in removed) or "nothing is left over")
            return
        if fleet is None or not verb:
            raise InputError("give a fleet file and a verb of potluck, like lab.toml -- train job.py")
        sys.exit(run(fleet, verb, logs))
    except PotluckError as error:
        print(f"testbed: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def run(fleet: Path, verb: tuple[str, ...], logs: Path | None) -> int:
    """Runs it to its end and says what each device used; returns its exit code. Without `logs` it makes a folder."""
    try:
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--logs {logs}: {error.strerror}; name a folder that can be written") from None
    with Testbed(fleet, name="run") as bed:
        logs = logs or Path(tempfile.mkdtemp(prefix="testbed-"))
        coordinator = start_potluck(bed, verb)
        agents = join_all(bed, logs=logs)
        code = _wait(coordinator, agents, logs)
        if code == 0:
            _wait_for_agents(agents)
        print(usage(bed), f"agents' logs: {logs}", sep="\n", file=sys.stderr)
    return code


def _wait(coordinator: subprocess.Popen[bytes], agents: dict[str, subprocess.Popen[bytes]], logs: Path) -> int:
    """The exit code of the coordinator; it is told of Ctrl-C, and ended when it misses a device that has failed."""
    lost_since: float | None = None
    while coordinator.poll() is None:
        try:
            lost = [name for name, agent in agents.items() if agent.poll()]
            lost_since = (lost_since or time.monotonic()) if lost else None
            if lost_since is not None and time.monotonic() - lost_since > _GRACE_S:
                said = (logs / f"{lost[0]}.log").read_text(errors="replace").strip().splitlines() or ["nothing"]
                print(f"testbed: device {lost[0]} ended: {said[-1]}", file=sys.stderr)
                coordinator.kill()
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            coordinator.send_signal(signal.SIGINT)
    return coordinator.returncode


def _wait_for_agents(agents: dict[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _GRACE_S
    for agent in agents.values():
        try:
            agent.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return  # it ends with the testbed


def usage(bed: Testbed) -> str:
    """A table of what every device has used."""
    rows = [("device", "CPU s", "held back s", "peak memory", "out of memory", "sent", "received")]
    for device in (COORDINATOR, *bed.devices):
        rows.append((
            device, f"{bed.cpu_seconds(device):.1f}", f"{bed.throttled(device):.1f}",
            size_text(bed.peak_memory(device)), str(bed.oom_kills(device)), size_text(bed.bytes_sent(device)),
            size_text(bed.bytes_received(device)),
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    main()

"""Agents started by a test: real processes, ended by the test, whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from potluck.runtime.live_fleet import LiveFleet
from potluck.runtime.options import Options

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def fleet_of(modules: Sequence[Sequence[str]]) -> Iterator[tuple[LiveFleet, list[subprocess.Popen[bytes]]]]:
    """A live fleet of agents d0, d1, …, each started as `python -m MODULE ARGS… ADDRESS NAME`."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(address: str) -> None:
        for index, module in enumerate(modules):
            command = [sys.executable, "-m", *module, address, f"d{index}"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))

    options = Options(joined=len(modules), join_timeout_s=60.0, timeout_s=60.0, listening=start)
    try:
        with LiveFleet(None, options) as live:
            yield live, processes
        for process in processes:
            process.wait(20)
    finally:
        for process in processes:
            process.kill()
            process.wait()

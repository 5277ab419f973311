"""Flower on the testbed: its server in the coordinator's place, a client on every device."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sync.runs import START_S, Course, Setting
from benchmarks.testbed import Testbed
from benchmarks.testbed.agents import environment
from benchmarks.throughput.others import unhurried
from potluck.types import COORDINATOR

PORT = 7118


def flower_course(
    bed: Testbed, python: Path, shards: Path, folder: Path, targets: Sequence[float], setting: Setting, most_s: float
) -> Course:
    """FedAvg until the last target is reached, or for so long; counted from when all clients are there."""
    folder.mkdir(parents=True)
    address, found = f"{bed.address(COORDINATOR)}:{PORT}", Course()
    command = [str(python), "-W", "ignore", "-m", "benchmarks.sync.flower", "--address", address]
    shared = ["--rate", str(setting.rate), "--seed", str(setting.seed), "--workload", setting.workload]
    env = environment() | {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / "flower.log").open("ab") as log:
        server = bed.start(
            COORDINATOR,
            [*command, *shared, "--clients", str(len(bed.devices)), "--data", str(shards / "test.npz"), "--most-s",
             str(most_s), "--target", str(min(targets))],
            env=env, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        stuck = threading.Timer(most_s + START_S, server.kill)  # a server that waits for ever says nothing
        stuck.start()
        try:
            with unhurried(bed):
                for device in bed.devices:
                    data = ["--data", f"{shards / device}.npz"]
                    bed.start(device, [*command, *shared, *data], env=env, stdout=log, stderr=log)
                _read(server, found, until=1)
            _read(server, found, until=None)
        finally:
            stuck.cancel()
            for device in (*bed.devices, COORDINATOR):
                bed.kill(device)
            server.wait(30.0)
    found.reached_s = [next((at for at, loss in found.curve if loss <= target), None) for target in targets]
    found.problem = "" if len(found.curve) > 1 else "it said nothing"
    return found


def _read(server: subprocess.Popen[bytes], found: Course, until: int | None) -> None:
    while server.stdout is not None and (until is None or len(found.curve) < until):
        line = server.stdout.readline()
        if not line:
            return
        if line.startswith(b"{"):
            said = json.loads(line)
            found.curve.append((said["at_s"], said["loss"]))
            found.pushes = said["round"]

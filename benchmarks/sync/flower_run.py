"""Flower on the testbed: its server in the coordinator's place, a client on every device."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.sync.await_file import READY
from benchmarks.sync.runs import START_S, Course, Setting
from benchmarks.testbed import Testbed
from benchmarks.testbed.agents import environment
from benchmarks.throughput.others import unhurried
from potluck.types import COORDINATOR

PORT = 7118
LISTENING = b"gRPC server running"  # is what its server says then
LOOK_S = 0.05
LATE_S = 60.0  # of a round that began in time


def flower_course(
    bed: Testbed, python: Path, shards: Path, folder: Path, targets: Sequence[float], setting: Setting, most_s: float
) -> Course:
    """FedAvg until the last target is reached, or for so long; counted from when all clients are there and warm, and
    devices have their quotas."""
    folder.mkdir(parents=True)
    address, found, start = f"{bed.address(COORDINATOR)}:{PORT}", Course(), folder / "start"
    command = [str(python), "-W", "ignore", "-m", "benchmarks.sync.flower", "--address", address]
    shared = ["--rate", str(setting.rate), "--seed", str(setting.seed), "--workload", setting.workload]
    env = environment() | {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / "flower.log").open("ab") as log:
        server = bed.start(
            COORDINATOR,
            [*command, *shared, "--clients", str(len(bed.devices)), "--data", str(shards / "test.npz"), "--start",
             str(start), "--most-s", str(most_s), "--target", str(min(targets))],
            env=env, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        try:
            with unhurried(bed), _killed_after(server, START_S):
                _await_listening(server, folder / "flower.log")
                for device in bed.devices:
                    data = ["--data", f"{shards / device}.npz"]
                    bed.start(device, [*command, *shared, *data], env=env, stdout=log, stderr=log)
                ready = await_ready(server)
            if ready:
                start.touch()
                with _killed_after(server, most_s + LATE_S):
                    read_looks(server, found)
        finally:
            for device in (*bed.devices, COORDINATOR):
                bed.kill(device)
            server.wait(30.0)
    found.reached_s = [next((at for at, loss in found.curve if loss <= target), None) for target in targets]
    if not ready:
        found.problem = f"not all clients were ready in {START_S:.0f} s"
    elif len(found.curve) < 2:
        found.problem = "no round was over in time"
    return found


@contextlib.contextmanager
def _killed_after(server: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """A server that waits for ever says nothing, and whoever reads what it says would wait too."""
    stuck = threading.Timer(seconds, server.kill)
    stuck.start()
    try:
        yield
    finally:
        stuck.cancel()


def _await_listening(server: subprocess.Popen[bytes], log: Path) -> None:
    """Flower's clients give up where nobody listens yet."""
    while server.poll() is None and LISTENING not in log.read_bytes():
        time.sleep(LOOK_S)


def await_ready(server: subprocess.Popen[bytes]) -> bool:
    """Whether it says that all clients are there; False where it ends before."""
    return any(line.strip() == READY.encode() for line in server.stdout or ())


def read_looks(server: subprocess.Popen[bytes], found: Course) -> None:
    """What it says of its rounds, until it ends."""
    for line in server.stdout or ():
        if line.startswith(b"{"):
            said = json.loads(line)
            found.curve.append((said["at_s"], said["loss"]))
            found.pushes = said["round"]

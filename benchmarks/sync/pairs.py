"""How many pushes and pulls of a model of 1 MB a server answers in a second: it on one core, eight clients on another.

    python -m benchmarks.sync.pairs

The server writes its ledger, a record of every push and snapshots, one after the other, as in a run. Not included: a
network with a delay or a limit, judging, checkpoints for a user, and that workers may not push a third time before the
first of their pushes is in a snapshot; so it is how much the server can do, not how often workers push.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
import torch

from benchmarks.sync.pairs_keeping import PairsKeeping
from potluck.coordinator.run_folder.push_log import PUSHES, PushLog
from potluck.coordinator.serving.push_threads import TERM, Serving
from potluck.paramserver.applied_pushes import Push
from potluck.paramserver.messages import PULL, PUSH, PushWords, worker_link
from potluck.paramserver.policy import Policy
from potluck.paramserver.server import ParameterServer
from potluck.tensors.vectors import receive_vector, send_vector
from potluck.types import COORDINATOR
from potluck.wire.messages import FromCoordinator, Work
from potluck.wire.zmq_link import ZmqLink

FLOATS = 2**18
CLIENTS = 8
TIMEOUT_S = 60.0
Clients = Mapping[str, "subprocess.Popen[bytes]"]


def pairs_per_s(seconds: float = 8.0) -> dict[str, float]:
    """Pairs a second, and how much the server's memory grew between the middle and the end of it."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    torch.set_num_threads(1)  # more of them would wait for each other on the one core
    try:
        return _serve(cores[-1], seconds)
    finally:
        os.sched_setaffinity(0, cores)


def _serve(core: int, seconds: float) -> dict[str, float]:
    orders: dict[str, queue.SimpleQueue[FromCoordinator]] = {f"w{i}": queue.SimpleQueue() for i in range(CLIENTS)}
    with tempfile.TemporaryDirectory() as name:
        keeping = PairsKeeping(Path(name))
        server = ParameterServer({"w": torch.zeros(FLOATS)}, Policy(), PushLog(Path(name) / PUSHES), keeping.save)
        link = ZmqLink(COORDINATOR)
        serving = Serving(
            server, link, "run", lambda worker, message: orders[worker].put(message), keeping.pushed, keeping.lost,
            keeping.failed, keeping.failed, lambda: 1.0, TIMEOUT_S,
        )  # fmt: skip
        clients: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for worker, order in orders.items():
                serving.enter(worker, 1)
                clients[worker] = _client(worker, core, order.get())
            for worker, client in clients.items():
                address = b"" if client.stdout is None else client.stdout.readline()
                if not address:
                    raise RuntimeError(f"{worker} did not begin")
                serving.met(worker, 1, address.decode().strip())
            keeping.serve(server, serving)
            await_pushes(keeping, clients, 20 * CLIENTS)
            return _measured(keeping, clients, seconds)
        finally:
            for client in clients.values():
                client.kill()
                client.wait()
            serving.close()
            keeping.close()
            link.close()
            server.close()


def _client(worker: str, core: int, order: FromCoordinator) -> subprocess.Popen[bytes]:
    if not isinstance(order, Work):
        raise RuntimeError(f"{order} came first")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.sync.pairs", "--client", worker]
    return subprocess.Popen([*command, "--core", str(core), "--address", order.address], stdout=subprocess.PIPE)


def await_pushes(keeping: PairsKeeping, clients: Clients, pushes: int, most_s: float = TIMEOUT_S) -> None:
    """Until there were so many; a RuntimeError where a client ended, something went wrong, or that takes too long."""
    deadline = time.monotonic() + most_s
    while keeping.pushes < pushes:
        check(keeping, clients)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{keeping.pushes} pushes in {most_s:.0f} s, and {pushes} were expected")
        time.sleep(0.01)


def check(keeping: PairsKeeping, clients: Clients) -> None:
    """A RuntimeError unless everybody is still there and nothing went wrong."""
    codes = {worker: client.poll() for worker, client in clients.items()}
    ended = [f"{worker} ended with code {code}" for worker, code in codes.items() if code is not None]
    if ended or keeping.problems:
        raise RuntimeError("; ".join((*ended, *keeping.problems)))


def _measured(keeping: PairsKeeping, clients: Clients, seconds: float) -> dict[str, float]:
    before, snapshots = keeping.pushes, keeping.snapshots
    cpu, began, memory = time.process_time(), time.monotonic(), []
    for _ in range(2):
        time.sleep(seconds / 2)
        memory.append(_resident_bytes())
    taken, made = time.monotonic() - began, keeping.pushes - before
    check(keeping, clients)  # with fewer clients it would be another measurement
    return {
        "pairs_per_s": made / taken, "server_cores": (time.process_time() - cpu) / taken,
        "snapshots_per_s": (keeping.snapshots - snapshots) / taken, "grown_bytes": memory[1] - memory[0],
        "pushes": keeping.pushes,
    }  # fmt: skip


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _push(worker: str, core: int, address: str) -> None:
    os.sched_setaffinity(0, [core])
    torch.set_num_threads(1)
    link = ZmqLink(worker_link(worker, 1))
    link.adopt(TERM, {COORDINATOR: address}, 16 * 4 * FLOATS)
    print(link.address, flush=True)
    receive_vector(link, COORDINATOR, PULL, 0, torch.float32, FLOATS, TIMEOUT_S)
    difference, number = torch.full((FLOATS,), 1e-6), 0
    while True:
        number += 1
        push = Push(worker=worker, incarnation=1, sequence=number, base=0, steps=1, samples=1, loss=1.0)
        words = msgspec.msgpack.encode(PushWords(push=push, overhead_s=0.0))
        send_vector(link, COORDINATOR, PUSH, number, words, difference, TIMEOUT_S)
        receive_vector(link, COORDINATOR, PULL, number, torch.float32, FLOATS, TIMEOUT_S)


@click.command()
@click.option("--client", hidden=True)
@click.option("--core", type=int, hidden=True)
@click.option("--address", hidden=True)
@click.option("--seconds", default=8.0, show_default=True)
def main(client: str | None, core: int | None, address: str | None, seconds: float) -> None:
    """Measures it."""
    if client is not None and core is not None and address is not None:
        _push(client, core, address)
    print(json.dumps(pairs_per_s(seconds)))


if __name__ == "__main__":
    main()

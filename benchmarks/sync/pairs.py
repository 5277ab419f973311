"""How many pushes and pulls of a model of 1 MB a server answers in a second: it on one core, eight clients on another.

python -m benchmarks.sync.pairs
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import click
import msgspec
import torch

from potluck.paramserver.book import Push
from potluck.paramserver.policy import Policy
from potluck.paramserver.server import ParameterServer
from potluck.runtime.own_work import worker_link
from potluck.runtime.push_words import PULL, PUSH, PushWords
from potluck.runtime.serving import TERM, Serving
from potluck.runtime.vectors import receive_vector, send_vector
from potluck.types import COORDINATOR
from potluck.wire.messages import FromCoordinator, Work
from potluck.wire.zmq_link import ZmqLink

FLOATS = 2**18
CLIENTS = 8
TIMEOUT_S = 60.0


def pairs_per_s(seconds: float = 8.0) -> dict[str, float]:
    """Pairs a second, and how much the server's memory grew between the middle and the end of it."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    try:
        return _serve(cores[-1], seconds)
    finally:
        os.sched_setaffinity(0, cores)


def _serve(core: int, seconds: float) -> dict[str, float]:
    count, done = 0, threading.Lock()
    orders: dict[str, queue.SimpleQueue[FromCoordinator]] = {}

    def pushed(said: PushWords, reply: object) -> None:
        nonlocal count
        with done:
            count += 1

    with tempfile.TemporaryDirectory() as name:
        server = ParameterServer({"w": torch.zeros(FLOATS)}, Policy(), Path(name), lambda *saved: None)
        link = ZmqLink(COORDINATOR)
        workers = [f"w{i}" for i in range(CLIENTS)]
        orders |= {worker: queue.SimpleQueue() for worker in workers}
        serving = Serving(
            server, link, "run", lambda worker, message: orders[worker].put(message), pushed,
            lambda worker, incarnation, why: None, lambda error: None, lambda error: None, lambda: 1.0,
            TIMEOUT_S,
        )  # fmt: skip
        clients = []
        try:
            for worker in workers:
                serving.enter(worker, 1)
                order = orders[worker].get()
                if not isinstance(order, Work):
                    raise RuntimeError(f"{order} came first")
                client = subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-m", "benchmarks.sync.pairs", "--client", worker, "--core",
                     str(core), "--address", order.address],
                    stdout=subprocess.PIPE,
                )  # fmt: skip
                clients.append(client)
            for worker, client in zip(workers, clients, strict=True):
                address = b"" if client.stdout is None else client.stdout.readline()
                serving.met(worker, 1, address.decode().strip())
            while count < 20 * CLIENTS:
                time.sleep(0.01)
            before, cpu, began = count, time.process_time(), time.monotonic()
            memory = []
            for _ in range(2):
                time.sleep(seconds / 2)
                memory.append(_resident_bytes())
            taken = time.monotonic() - began
            return {
                "pairs_per_s": (count - before) / taken, "server_cores": (time.process_time() - cpu) / taken,
                "grown_bytes": memory[1] - memory[0], "pushes": count,
            }  # fmt: skip
        finally:
            for client in clients:
                client.kill()
                client.wait()
            serving.close()
            link.close()
            server.close()


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

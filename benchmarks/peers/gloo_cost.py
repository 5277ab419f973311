"""CPU time to move tensors from one process to another: Gloo's send and receive, and our link over ZeroMQ.

    python -m benchmarks.peers.gloo_cost --json                     # two processes on loopback
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python -m …     # or one of two ranks, rank 0 sends

CPU seconds of sender and receiver, all threads, user and system, per GB (1e9 bytes) moved. Both carriers take turns, so
that the machine's mood is the same for both; the median of the repeats counts, and of the two sizes the worse.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import click
import torch
import torch.distributed as dist

from benchmarks.peers.program import FAILED, Watchdog, leave
from benchmarks.peers.ranks import Place, joined
from potluck.device.host.device_kinds import settle_heap
from potluck.settings.address import LinkAddress
from potluck.settings.local_address import address_towards, resolve
from potluck.wire.link import Tag
from potluck.wire.trust import PlainTrust
from potluck.wire.zmq_link import ZmqLink

SIZES = {"1mb": 10**6, "4mb": 4 * 10**6}
SENT, DONE = Tag("sent"), Tag("done")
Move = Callable[[int, int], None]  # (bytes of a tensor, how many)


def gloo_mover(place: Place) -> Move:
    """Tensors by torch.distributed's send and recv; the receiver uses one buffer again and again."""

    def move(size_bytes: int, count: int) -> None:
        tensor = torch.zeros(size_bytes, dtype=torch.uint8)
        for _ in range(count):
            if place.rank == 0:
                dist.send(tensor, 1)
            else:
                dist.recv(tensor, 0)
        dist.barrier()  # all has arrived

    return move


def link_mover(place: Place, link: ZmqLink, timeout_s: float) -> Move:
    """Tensors by our link; the receiver makes a tensor of what it gets, as a device does."""

    def move(size_bytes: int, count: int) -> None:
        tensor = torch.zeros(size_bytes, dtype=torch.uint8)
        if place.rank == 0:
            view = tensor.numpy().data
            for _ in range(count):
                link.send("1", SENT, [view], timeout_s)
            link.receive("1", DONE, timeout_s)
            return
        for _ in range(count):
            [part] = link.receive("0", SENT, timeout_s)
            tensor = torch.frombuffer(part, dtype=torch.uint8)
        link.send("0", DONE, [b""], timeout_s)

    return move


def open_link(place: Place) -> ZmqLink:
    """A link to the other rank, on the address by which they see each other."""
    master = resolve(os.environ["MASTER_ADDR"], "MASTER_ADDR")
    bind = master if place.rank == 0 else address_towards(master, int(os.environ["MASTER_PORT"]))
    settle_heap()  # as a device does
    trust = PlainTrust((IPv4Network("0.0.0.0/0"),))  # as open as Gloo's
    link = ZmqLink(str(place.rank), bind=LinkAddress(str(bind)), trust=trust)
    host, port = link.address.removeprefix("tcp://").split(":")
    numbers = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(numbers, torch.tensor([int(IPv4Address(host)), int(port)]))
    other = 1 - place.rank
    there = f"tcp://{IPv4Address(int(numbers[other][0]))}:{int(numbers[other][1])}"
    link.adopt(0, {str(other): there})
    return link


def cost(move: Move, size_bytes: int, total_bytes: int) -> tuple[float, float, float]:
    """CPU seconds per GB of the sender and of the receiver, and GB moved in a second."""
    count = max(1, total_bytes // size_bytes)
    dist.barrier()
    started, cpu_s = time.perf_counter(), time.process_time()
    move(size_bytes, count)
    mine = torch.tensor([time.process_time() - cpu_s, time.perf_counter() - started], dtype=torch.float64)
    both = [torch.zeros_like(mine), torch.zeros_like(mine)]
    dist.all_gather(both, mine)
    gigabytes = count * size_bytes / 1e9
    return float(both[0][0]) / gigabytes, float(both[1][0]) / gigabytes, gigabytes / float(both[0][1])


def measure(place: Place, total_bytes: int, repeats: int, timeout_s: float, watchdog: Watchdog) -> dict[str, Any]:
    """Every cell, and the worse size of each carrier."""
    link = open_link(place)
    movers = {"gloo": gloo_mover(place), "zmq": link_mover(place, link, timeout_s)}
    cells: dict[str, list[tuple[float, float, float]]] = {}
    try:
        for repeat in range(repeats + 1):
            for carrier, move in movers.items():
                for word, size in SIZES.items():
                    result = cost(move, size, total_bytes if repeat else size)  # the first only warms up
                    watchdog.pat()
                    if repeat:
                        cells.setdefault(f"{carrier}_{word}", []).append(result)
    finally:
        link.close()
    table = {name: _median(results) for name, results in cells.items()}
    worst = {c: max(table[f"{c}_{w}"]["cpu_s_per_gb"] for w in SIZES) for c in movers}
    return {"gloo_cpu_s_per_gb": worst["gloo"], "cpu_s_per_gb": worst["zmq"], "cells": table}


def _median(results: list[tuple[float, float, float]]) -> dict[str, float]:
    sender, receiver, rate = (statistics.median(column) for column in zip(*results, strict=True))
    total = statistics.median(s + r for s, r, _ in results)
    return {"cpu_s_per_gb": total, "sender": sender, "receiver": receiver, "gb_per_s": rate}


def on_loopback(timeout_s: float) -> dict[str, Any]:
    """The outcome of two ranks started here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(2):
        places = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ, **places}
        command = [sys.executable, "-m", "benchmarks.peers.gloo_cost", *sys.argv[1:], "--json"]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        texts = [process.communicate(timeout=timeout_s * 4)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError("a rank failed; see its line above")
    outcome: dict[str, Any] = json.loads(texts[0].splitlines()[-1])
    return outcome


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
@click.option("--megabytes", default=1000, show_default=True, help="Moved in each measurement.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--timeout-s", default=60.0, show_default=True, help="Longest wait for anything.")
def main(as_json: bool, megabytes: int, repeats: int, timeout_s: float) -> None:
    """Measure the CPU cost of moving tensors. Example: python -m benchmarks.peers.gloo_cost --json"""
    torch.set_num_threads(1)
    try:
        if "RANK" in os.environ:
            watchdog = Watchdog(timeout_s)
            with joined(timeout_s) as place:
                outcome = measure(place, megabytes * 10**6, repeats, timeout_s, watchdog)
        else:
            outcome = on_loopback(timeout_s)
    except Exception as error:  # whatever it is, a rank that failed must end, and say why in one line
        leave(FAILED, f"{type(error).__name__}: {error}")
    _print_table(outcome["cells"])
    if as_json:
        print(json.dumps(outcome))


def _print_table(cells: dict[str, dict[str, float]]) -> None:
    columns = {"CPU s/GB": "cpu_s_per_gb", "sender": "sender", "receiver": "receiver", "GB/s": "gb_per_s"}
    print(f"{'carrier, tensor':16}" + "".join(f"{head:>10}" for head in columns))
    for name, cell in cells.items():
        print(f"{name:16}" + "".join(f"{cell[key]:10.3f}" for key in columns.values()))


if __name__ == "__main__":
    main()

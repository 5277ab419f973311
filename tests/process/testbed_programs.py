"""Programs that run on the devices of a testbed, and what they say."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks.testbed import Testbed, TestbedMissing, check_machine
from potluck.types import COORDINATOR, DeviceSpec, Fleet, LinkSpec

ROOT = Path(__file__).parents[2]
FLEETS = ROOT / "benchmarks" / "fleets"
PATIENCE_S = 45.0  # whatever else the machine does: a gigabit takes most of a core at both ends
MBIT = 125_000.0

try:
    check_machine()
    MISSING = ""
except TestbedMissing as error:
    MISSING = str(error)
on_a_testbed = [pytest.mark.root, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

SPIN = """
import sys, time
while True:
    wall, cpu = time.monotonic(), time.process_time()
    while time.monotonic() < wall + 0.5: pass
    print((time.process_time() - cpu) / (time.monotonic() - wall), flush=True)
"""
# Counts what comes over one connection, by windows of 0.25 s, until the other side ends it.
RECEIVE = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
line, _ = server.accept()
since, size = time.monotonic(), 0
while data := line.recv(1 << 18):
    size += len(data)
    if time.monotonic() > since + 0.25:
        print(size / (time.monotonic() - since), flush=True)
        since, size = time.monotonic(), 0
"""
SEND = """
import socket, sys
line = socket.create_connection((sys.argv[1], 5000), timeout=20)
while True:
    line.sendall(bytes(1 << 16))
"""
# Says something to the other every 10 ms, and prints a line for whatever it hears.
CHAT = """
import socket, sys, time
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind(("0.0.0.0", 5001))
line.settimeout(0.01)
while True:
    try:
        line.sendto(b"hello", (sys.argv[1], 5001))
    except OSError as error:
        print("error", error, flush=True)
    try:
        line.recv(100)
        print("heard", flush=True)
    except TimeoutError:
        pass
"""
ALLOCATE = """
import sys, time
held = bytearray(int(sys.argv[1]))
held[::4096] = bytes(len(held[::4096]))
print("holding", flush=True)
time.sleep(60)
"""


def fleet_of(*speeds: float, bandwidth: float | None = None, memory: int = 0) -> Fleet:
    """Devices d0, d1, … of these speeds."""
    devices = [DeviceSpec(name=f"d{i}", speed=speed, memory_bytes=memory) for i, speed in enumerate(speeds)]
    return Fleet(devices=tuple(devices), bandwidth_bytes_s=bandwidth)


def two_rooms() -> Fleet:
    """Two devices in each of two rooms, with 400 Mbit/s inside and one line of 100 Mbit/s between them."""
    far = [(a, b) for a in ("a0", "a1", COORDINATOR) for b in ("b0", "b1")]
    return Fleet(
        devices=tuple(DeviceSpec(name=name, speed=0.4) for name in ("a0", "a1", "b0", "b1")),
        bandwidth_bytes_s=400 * MBIT,
        links=tuple(LinkSpec(between=pair, bandwidth_bytes_s=100 * MBIT) for pair in far),
    )


def wait_until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE_S} s"
        time.sleep(0.01)


class Program:
    """A Python program on a device, and the lines that it prints."""

    def __init__(self, bed: Testbed, device: str, source: str, *arguments: str) -> None:
        reading, writing = os.pipe()
        self.process = bed.start(device, [sys.executable, "-c", source, *arguments], stdout=writing)
        os.close(writing)
        os.set_blocking(reading, False)
        self._lines = os.fdopen(reading, "rb")
        self._text = ""

    def lines(self) -> list[str]:
        """All that it has printed so far."""
        self._text += (self._lines.read() or b"").decode()
        return self._text.splitlines()[: self._text.count("\n")]

    def wait_for(self, count: int) -> list[str]:
        """Its lines, once there are so many."""
        wait_until(lambda: len(self.lines()) >= count, f"line {count} of a program")
        return self.lines()


def settles(wanted: Mapping[Program, float]) -> bool:
    """Whether the numbers that programs print from now on come within 10 % of what is wanted and stay there."""
    first = {program: len(program.lines()) + 1 for program in wanted}  # the next may be of the time before

    def steady(program: Program) -> bool:
        last = [float(line) for line in program.lines()[first[program] :][-3:]]
        return len(last) == 3 and sorted(last)[1] == near(wanted[program])

    wait_until(lambda: all(steady(program) for program in wanted), f"{list(wanted.values())} within 10 %")
    return True


def near(wanted: float) -> object:
    """Anything within 10 %."""
    return pytest.approx(wanted, rel=0.1)


def transfer(bed: Testbed, source: str, target: str) -> Program:
    """An endless transfer; the program prints bytes/s as they arrive."""
    receiver = Program(bed, target, RECEIVE)
    receiver.wait_for(1)
    bed.start(source, [sys.executable, "-c", SEND, bed.address(target)])
    return receiver

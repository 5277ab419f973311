"""The proxy: what goes through it, what it does on purpose, and that it does the same again."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.proxy import Faults, Proxy
from benchmarks.proxy_faults import Fate, read_change
from potluck.errors import InputError

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20.0
MESSAGE = bytes(range(256)) * 4000  # 1 MB


@contextlib.contextmanager
def echo_server() -> Iterator[str]:
    """The address of a server that sends everything back; it has ended afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)

        def echo(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(PATIENCE_S)
                while data := connection.recv(65536):
                    connection.sendall(data)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def exchange(address: str, message: bytes) -> bytes:
    """What comes back of a message, until the end of the stream."""
    with connect(address) as connection:

        def send() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(message)
                connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            parts = []
            while data := connection.recv(65536):
                parts.append(data)
            return b"".join(parts)
        finally:
            sender.join(PATIENCE_S)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.005)


def test_everything_passes_unchanged_without_faults():
    with echo_server() as server, Proxy(server) as proxy:
        assert exchange(proxy.address, MESSAGE) == MESSAGE
        assert proxy.counts == {"connections": 1}


def test_a_delay_is_added_in_each_direction_and_can_be_changed_while_connected():
    with echo_server() as server, Proxy(server, faults=Faults(delay_s=0.1)) as proxy, connect(proxy.address) as line:

        def round_trip_s() -> float:
            started = time.monotonic()
            line.sendall(b"?")
            assert line.recv(1) == b"?"
            return time.monotonic() - started

        assert 0.2 <= round_trip_s() < 1.0
        proxy.change(delay_s=0.0)
        assert min(round_trip_s() for _ in range(5)) < 0.1


def test_a_long_delay_does_not_limit_bandwidth():
    with echo_server() as server, Proxy(server, faults=Faults(delay_s=0.2)) as proxy:
        started = time.monotonic()
        assert exchange(proxy.address, MESSAGE) == MESSAGE
        assert 0.4 <= time.monotonic() - started < 2.0


def test_jitter_keeps_the_order():
    with echo_server() as server, Proxy(server, faults=Faults(jitter_s=0.03)) as proxy:
        assert exchange(proxy.address, MESSAGE) == MESSAGE


def test_a_stall_keeps_the_bytes_and_costs_time():
    with echo_server() as server, Proxy(server, faults=Faults(stall_every=400_000, stall_s=0.1), seed=1) as proxy:
        started = time.monotonic()
        assert exchange(proxy.address, MESSAGE) == MESSAGE
        assert proxy.counts["stall"] >= 1
        assert time.monotonic() - started >= 0.1


def test_nothing_passes_while_held_and_everything_afterwards():
    with echo_server() as server, Proxy(server) as proxy, connect(proxy.address) as line:
        line.sendall(b"1")
        assert line.recv(1) == b"1"
        proxy.change(hold=True)
        line.sendall(b"2")
        line.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.recv(1)
        proxy.change(hold=False)
        line.settimeout(PATIENCE_S)
        assert line.recv(1) == b"2"


def test_corruption_flips_bits_and_the_same_seed_flips_the_same_ones():
    def corrupted(seed: int) -> list[int]:
        with echo_server() as server, Proxy(server, faults=Faults(corrupt_every=100_000), seed=seed) as proxy:
            received = exchange(proxy.address, MESSAGE)
            places = [i for i, (a, b) in enumerate(zip(MESSAGE, received, strict=True)) if a != b]
            assert len(places) == proxy.counts["corrupt"] > 2
            return places

    assert corrupted(3) == corrupted(3) != corrupted(4)


def test_truncation_ends_the_stream_early_and_without_an_error():
    with echo_server() as server, Proxy(server, faults=Faults(truncate_every=100_000)) as proxy:
        received = exchange(proxy.address, MESSAGE)
        assert len(received) < len(MESSAGE)
        assert MESSAGE.startswith(received)
        assert proxy.counts["truncate"] >= 1


def test_a_reset_is_an_error_on_the_connection():
    with echo_server() as server, Proxy(server, faults=Faults(reset_every=100_000)) as proxy:
        with pytest.raises(ConnectionResetError):
            exchange(proxy.address, MESSAGE)
        assert proxy.counts["reset"] >= 1


def test_every_connection_can_be_reset_at_once_and_new_ones_are_fine():
    with echo_server() as server, Proxy(server) as proxy, connect(proxy.address) as line:
        line.sendall(b"1")
        assert line.recv(1) == b"1"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            line.recv(1)
        assert exchange(proxy.address, b"again") == b"again"


def test_a_target_that_is_not_there_resets_the_caller():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # it is taken, and nobody listens
        with Proxy(f"127.0.0.1:{deaf.getsockname()[1]}") as proxy:
            with pytest.raises(ConnectionResetError), connect(proxy.address) as line:
                line.recv(1)
            assert proxy.counts["connections"] == 1


def test_an_address_in_use_is_refused_in_one_line():
    with (
        echo_server() as server,
        pytest.raises(InputError, match=f"--listen {server}: .*; give a free address"),
        Proxy(server, listen=server),
    ):
        pass


def test_faults_fall_on_the_same_bytes_however_the_stream_is_cut_up():
    def offsets(sizes: list[int]) -> list[int]:
        fate, found, start = Fate("seed"), [], 0
        for size in sizes:
            found += [start + offset for offset in fate.strikes(1000.0, size)]
            start += size
        return found

    whole = offsets([100_000])
    assert whole == offsets([1] * 100_000) == offsets([999] * 100 + [100])
    assert 60 < len(whole) < 150


@pytest.mark.parametrize("line", ["delay", "delay soon", "delays 3ms", "corrupt-every 0", "hold maybe"])
def test_a_change_that_makes_no_sense_is_refused(line: str):
    with pytest.raises(InputError, match=r"[;:] give"):
        read_change(line)


def test_the_command_serves_and_obeys_its_standard_input():
    with echo_server() as server:
        command = [sys.executable, "-m", "benchmarks.proxy", "--to", server, "--hold", "yes"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdin is not None
                address = process.stdout.readline().removeprefix("listening at ").strip()
                with connect(address) as line:
                    line.sendall(b"1")
                    line.settimeout(0.3)
                    with pytest.raises(TimeoutError):
                        line.recv(1)
                    process.stdin.write("hold no\n")
                    process.stdin.flush()
                    line.settimeout(PATIENCE_S)
                    assert line.recv(1) == b"1"
            finally:
                process.kill()

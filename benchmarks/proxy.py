"""A TCP proxy that behaves as badly as asked: delay, jitter, stalls, corruption, truncation, resets.

    python -m benchmarks.proxy --listen 127.0.0.1:7000 --to 127.0.0.1:7117 --delay 20ms --reset-every 10MB

Each line on standard input changes something: `delay 50ms`, `reset-every none`, `hold yes`. Where in the stream a fault
falls follows from the seed, the number of the connection and the direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import TypeVar

import click

from benchmarks.proxy_faults import SETTINGS, Fates, Faults, read_change
from potluck.errors import InputError, PotluckError
from potluck.settings.address import split_address

__all__ = ["Faults", "Proxy"]

T = TypeVar("T")
_CHUNK = 64 * 1024
_UNDERWAY_CHUNKS = 64  # a long delay is to be no limit of bandwidth
_START_S = 10.0
_HOLD_POLL_S = 0.01
_RESET = struct.pack("ii", 1, 0)  # linger for 0 s: closing sends a reset


class Proxy:
    """A proxy in a thread of its own, as a context. `change` and `reset` may be called while it runs."""

    def __init__(
        self, target: str, *, listen: str = "127.0.0.1:0", faults: Faults | None = None, seed: int = 0
    ) -> None:
        self._target = split_address(target, port_needed=True)
        self._listen = split_address(listen, port_needed=False)
        self.faults, self.address = faults or Faults(), ""
        self.counts: Counter[str] = Counter()  # faults that have happened, by kind; and "connections"
        self._seed = seed
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        try:
            starting.result(_START_S)
        except OSError as error:
            self._end_thread()
            where = ":".join(map(str, self._listen))
            why = error.strerror or str(error)
            raise InputError(f"--listen {where}: {why}; give a free address of this machine") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_START_S)
        self._end_thread()

    def change(self, **changes: float | bool | None) -> None:
        """Changes some of the faults from the next bytes on; holding begins or is over at once."""
        self.faults = dataclasses.replace(self.faults, **changes)  # type: ignore[arg-type]

    def reset(self) -> None:
        """Resets every connection now."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def count(self, kind: str, times: int = 1) -> None:
        """Notes that something has happened."""
        self.counts[kind] += times

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self._listen)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])

    async def _stop(self) -> None:
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _abort_all(self) -> None:
        self.count("reset", len(self._writers) // 2)
        for writer in self._writers:
            _abort(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = f"{self._seed}/{self.counts['connections']}"
        self.count("connections")
        writers = {writer}
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._target)
            writers.add(target_writer)
            self._writers |= writers
            there = _Direction(self, f"{name}/there", reader, target_writer)
            back = _Direction(self, f"{name}/back", target_reader, writer)
            await _all([there.run(), back.run()])
        except OSError:
            for one in writers:
                _abort(one)
        finally:
            self._writers -= writers
            for one in writers:
                one.close()


class _Direction:
    """One direction of a connection: what is read is struck by faults, and written when it is due."""

    def __init__(self, proxy: Proxy, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._fates = Fates(name, proxy.count)
        self._underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDERWAY_CHUNKS)  # when due, what

    async def run(self) -> None:
        """Carries everything until it ends, or raises when the connection is to be reset."""
        ending, _ = await _all([self._read(), self._write()])
        if ending == "reset":
            raise ConnectionResetError
        self._writer.write_eof()
        while await self._reader.read(_CHUNK):
            pass  # what follows a truncation: closing instead would reset the connection

    async def _read(self) -> str:
        loop, ending = asyncio.get_running_loop(), ""
        while not ending and (data := await self._reader.read(_CHUNK)):
            faults = self._proxy.faults
            passed, ending = self._fates.strike(faults, bytearray(data))
            due = loop.time() + self._fates.wait_s(faults, len(passed))
            if passed:
                await self._underway.put((due, passed))
        await self._underway.put((loop.time() + self._proxy.faults.delay_s, b""))
        return ending

    async def _write(self) -> str:
        loop = asyncio.get_running_loop()
        data = b"."
        while data:
            due, data = await self._underway.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            while self._proxy.faults.hold:
                await asyncio.sleep(_HOLD_POLL_S)
            self._writer.write(data)
            await self._writer.drain()
        return ""


async def _all(work: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """What they return; as soon as one fails, the others are cancelled and its error is raised."""
    running = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # closed already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _command() -> click.Command:
    options = [click.Option([f"--{key}"], metavar="VALUE") for key in SETTINGS]
    listen = click.Option(["--listen"], default="127.0.0.1:0", show_default=True, metavar="HOST:PORT")
    target = click.Option(["--to"], required=True, metavar="HOST:PORT", help="Where it all goes.")
    seed = click.Option(["--seed"], type=int, default=0, show_default=True)
    return click.Command("proxy", params=[listen, target, seed, *options], callback=serve, help=__doc__)


def serve(listen: str, to: str, seed: int, **given: str | None) -> None:
    """Runs a proxy until it is interrupted, and changes it as standard input says."""
    try:
        with Proxy(to, listen=listen, seed=seed) as proxy, contextlib.suppress(KeyboardInterrupt):
            for key, value in given.items():
                if value is not None:
                    proxy.change(**read_change(f"{key.replace('_', '-')} {value}"))
            print(f"listening at {proxy.address}", flush=True)
            for line in sys.stdin:
                try:
                    proxy.change(**read_change(line))
                except InputError as error:
                    print(f"proxy: {error}", file=sys.stderr, flush=True)
            threading.Event().wait()  # no deadline: it serves until it is interrupted
    except PotluckError as error:
        print(f"proxy: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _command()()

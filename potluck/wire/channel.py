"""One WebSocket of the control channel, from either side: JSON messages, and a watch on whether the other is there."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from aiohttp import ClientWebSocketResponse, WSMsgType, web

from potluck.memory_limit import start

In = TypeVar("In")
R = TypeVar("R")

PATIENT_S = 12.0  # while it starts, reads a program or measures: on a twelfth of a core that holds the lock for long
SILENCE_S = 3.0  # of one that was not let in yet: it has said nothing that is worth waiting for
PING_S = 0.5  # between two pings: with it, silence of less than 3 s is told from a late answer
PINGS_PER_SILENCE = 6  # at least: one that is late or lost is no silence
LOOKS_PER_PING = 4  # at the clock: silence is noticed an eighth of a second late at most
MAX_MESSAGE_BYTES = 16 * 2**20  # a plan or a profile of many blocks is far below, and no memory is at risk
MAX_PENDING_BYTES = 64 * 2**20  # queued for a side that reads too slowly: four of the largest messages
MAX_STRANGERS = 1024  # connected and not yet accepted: as many as the largest fleet
STRANGER_MESSAGES = 16  # that one who is not yet accepted may send: a greeting is enough,
STRANGER_BYTES = 256 * 1024  # and short
CLOSE_S = 1.0  # for the other side to take leave: whoever is there answers at once
_GOODBYE = "the other side closed"
SILENT = "nothing was heard"


class Watch(Protocol):
    """Judges the silence of the other side; the caller brings the time."""

    def heard(self, now_s: float) -> None:
        """It said something."""

    def forgive(self, now_s: float) -> None:
        """This side was held up itself."""

    def gone(self, now_s: float) -> str | None:
        """Why it is taken for gone, if it is."""


class FixedWatch:
    """So many seconds of silence are too many."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s, self._heard_s = silence_s, math.inf

    def heard(self, now_s: float) -> None:
        self._heard_s = now_s

    def forgive(self, now_s: float) -> None:
        self._heard_s = now_s

    def gone(self, now_s: float) -> str | None:
        silence = now_s - self._heard_s
        return f"{SILENT} from it for {silence:.1f} s" if silence > self._silence_s else None


@dataclass(frozen=True)
class Connected:
    """Somebody connected; its number is never used again."""

    peer_id: int


@dataclass(frozen=True)
class Received(Generic[In]):
    """A message came."""

    peer_id: int
    message: In


@dataclass(frozen=True)
class Disconnected:
    """The connection is over: nothing more comes from it, and what is sent to it goes nowhere."""

    peer_id: int
    why: str

    @property
    def silent(self) -> bool:
        """Whether nothing was heard any more, rather than that the connection ended."""
        return self.why.startswith(SILENT)


@dataclass
class Stranger:
    """Somebody who is connected and not accepted."""

    messages: int = 0
    size: int = 0

    def may_say(self, size: int) -> bool:
        """Whether one more message of this size is within what is kept of strangers."""
        if self.messages >= STRANGER_MESSAGES or self.size + size > STRANGER_BYTES:
            return False
        self.messages += 1
        self.size += size
        return True


class LoopThread:
    """An asyncio loop in a daemon thread of its own, so that it goes on while other threads compute."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        start(self._thread)

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float) -> R:
        """Run a coroutine there and return its result; TimeoutError after a deadline."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout_s), self._loop).result(timeout_s + 5.0)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Have a function called there, soon; nothing happens once the loop is stopped."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    @property
    def alive(self) -> bool:
        """Whether it was not stopped yet."""
        return not self._loop.is_closed()

    def stop(self) -> None:
        """End the loop and its thread; what still runs there is cancelled first."""
        if self.alive:
            with contextlib.suppress(TimeoutError, RuntimeError):
                asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).result(3.0)
        self.post(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=1.0)


class Conversation(Generic[In]):
    """A connected WebSocket; every method belongs to the loop's thread."""

    def __init__(
        self,
        socket: web.WebSocketResponse | ClientWebSocketResponse,
        decoder: msgspec.json.Decoder[In],
        deliver: Callable[[In, int], None],  # a message and its length
        silence_s: float,
        looks_per_ping: int = 1,  # more of them notice a silence sooner
    ) -> None:
        self._socket = socket
        self._decoder = decoder
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._ping_s, self._looks = min(PING_S, silence_s / PINGS_PER_SILENCE), looks_per_ping
        self.watch_by(FixedWatch(silence_s))
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._pending_bytes = 0

    def watch_by(self, watch: Watch) -> None:
        """Judges silence by this from now on."""
        watch.heard(self._loop.time())
        self._watch_of = watch

    def post(self, data: bytes) -> None:
        """Queue a message; a side that lets too much pile up is cut off."""
        self._pending_bytes += len(data)
        if self._pending_bytes > MAX_PENDING_BYTES:
            self.end(f"it reads too slowly: {self._pending_bytes} bytes wait for it")
        else:
            self._outbox.put_nowait(data)

    def end(self, why: str) -> None:
        """Make `run` return this reason, unless it already has one."""
        if not self._ended.done():
            self._ended.set_result(why)

    async def run(self) -> str:
        """Talk until either side ends it or falls silent; returns why."""
        tasks = [self._loop.create_task(self._guard(part())) for part in (self._read, self._write, self._watch)]
        try:
            return await self._ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self, why: str) -> None:
        """Tell the other side why, if it still listens, and close."""
        reason = why.encode()[:120].decode(errors="ignore").encode()  # a close frame holds 123 bytes
        with contextlib.suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(self._socket.close(message=reason), CLOSE_S)

    async def _guard(self, part: Coroutine[Any, Any, str | None]) -> None:
        try:
            why = await part
        except Exception as error:  # whatever it is, the conversation must not hang half alive
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            self.end(why)

    async def _read(self) -> str:
        while True:
            message = await self._socket.receive()
            self._watch_of.heard(self._loop.time())
            match message.type:
                case WSMsgType.TEXT:
                    try:
                        self._deliver(self._decoder.decode(message.data), len(message.data))
                    except msgspec.MsgspecError as error:
                        return f"it sent a malformed message: {error}"
                case WSMsgType.PING:
                    await self._socket.pong(message.data)
                case WSMsgType.PONG:
                    pass
                case WSMsgType.CLOSE:
                    return f"{_GOODBYE}: {message.extra or 'no reason given'}"
                case WSMsgType.BINARY:
                    return "it sent a malformed message: binary where JSON text is expected"
                case WSMsgType.ERROR:
                    return f"the connection broke: {message.data}"
                case _:
                    return "the connection closed"

    async def _write(self) -> None:
        while True:
            data = await self._outbox.get()
            try:
                await self._socket.send_str(data.decode())
            except ConnectionError:
                return  # the reader will say why
            self._pending_bytes -= len(data)

    async def _watch(self) -> str:
        look_s = self._ping_s / self._looks
        before, looks = self._loop.time(), 0
        while True:
            await asyncio.sleep(look_s)
            now = self._loop.time()
            if now - before > 2 * self._ping_s:
                self._watch_of.forgive(now)  # this side was held up itself: what came meanwhile is still to be read
            before = now
            why = self._watch_of.gone(now)
            if why is not None:
                return why
            looks += 1
            if looks % self._looks == 0:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    await asyncio.wait_for(self._socket.ping(), self._ping_s)

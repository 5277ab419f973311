"""The control channel: typed JSON messages over WebSocket, and blobs by digest, on one port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import itertools
import logging
import os
import queue
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from potluck.errors import DeviceError, InputError, PotluckError
from potluck.wire.channel import (
    CLOSE_S,
    LOOKS_PER_PING,
    MAX_MESSAGE_BYTES,
    MAX_STRANGERS,
    PATIENT_S,
    SILENCE_S,
    Connected,
    Conversation,
    Disconnected,
    LoopThread,
    Received,
    Stranger,
    Watch,
)
from potluck.wire.trust import ON_THIS_MACHINE, Trust

In = TypeVar("In")
Out = TypeVar("Out")

CONTROL_PATH = "/control"
RETRY_S = 0.1  # between two tries: nobody waits longer than they must, and a busy port is not flooded
KNOCK_S = 20.0  # for one try: a connection that is lost on the way is tried anew
SERVER_PEER_ID = 0  # of the only peer that a client has

# aiohttp would show a traceback for every scanner that speaks something else than HTTP.
_quiet = logging.getLogger("potluck.wire.control_channel")
_quiet.disabled = True


class ControlServer(Generic[In, Out]):
    """The coordinator's side. What happens arrives in `events`: a peer killed, at once; one gone silent, when its watch
    says so.

    Until a peer is accepted, only a few messages of it are kept; the others are dropped and counted.
    """

    def __init__(
        self,
        host: str,
        port: int,
        decode_type: Any,
        *,
        silence_s: float = SILENCE_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        trust: Trust = ON_THIS_MACHINE,
    ) -> None:
        self._trust = trust
        self.events: queue.Queue[Connected | Received[In] | Disconnected] = queue.Queue()
        self._decoder: msgspec.json.Decoder[In] = msgspec.json.Decoder(decode_type)
        self._silence_s = silence_s
        self._max_message_bytes = max_message_bytes
        self._blobs: dict[str, bytes] = {}
        self._conversations: dict[int, Conversation[In]] = {}
        self._strangers: dict[int, Stranger] = {}
        self.dropped_messages = 0
        self._numbers = itertools.count(1)
        self._thread = LoopThread("control server")
        try:
            self._runner, self.address = self._thread.run(self._start(host, port), 10.0)
        except OSError as error:
            self._thread.stop()
            raise _cannot_listen(host, port, error) from error

    def send(self, peer_id: int, message: Out) -> None:
        """Queue a message, from any thread. To a peer that is gone it goes nowhere: `Disconnected` says so."""
        data = msgspec.json.encode(message)
        self._thread.post(self._with, peer_id, lambda conversation: conversation.post(data))

    def accept(self, peer_id: int) -> None:
        """Let a peer say as much as it likes from now on, from any thread."""
        self._strangers.pop(peer_id, None)

    def watch(self, peer_id: int, watch: Watch) -> None:
        """Judge a peer's silence by this from now on, from any thread."""
        self._thread.post(self._with, peer_id, lambda conversation: conversation.watch_by(watch))

    def offer(self, digest: str, data: bytes) -> None:
        """Let clients fetch these bytes by their SHA-256, from now on."""
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"blob {digest}: the bytes have another SHA-256")
        self._blobs[digest] = data

    def disconnect(self, peer_id: int, why: str) -> None:
        """End one connection and tell the peer why, from any thread; `Disconnected` follows."""
        self._thread.post(self._with, peer_id, lambda conversation: conversation.end(why))

    def close(self) -> None:
        """End every connection and free the port; more than once does no harm."""
        if self._thread.alive:
            self._thread.run(self._stop(), 10.0)
            self._thread.stop()

    # --- in the loop's thread

    async def _start(self, host: str, port: int) -> tuple[web.AppRunner, str]:
        app = web.Application(middlewares=[self._admit])
        app.router.add_get(CONTROL_PATH, self._converse)
        app.router.add_get("/blob/{digest}", self._blob)
        runner = web.AppRunner(app, access_log=None, logger=_quiet, shutdown_timeout=CLOSE_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=self._trust.server_context()).start()
        except OSError:
            await runner.cleanup()
            raise
        return runner, f"{host}:{runner.addresses[0][1]}"

    @web.middleware
    async def _admit(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        why = self._trust.refusal(request.remote or "", "control")
        if why is not None:
            raise web.HTTPForbidden(text=why)
        return await handler(request)

    async def _stop(self) -> None:
        for conversation in self._conversations.values():
            conversation.end("this side is closing")
        await self._runner.cleanup()

    async def _converse(self, request: web.Request) -> web.WebSocketResponse:
        if "Origin" in request.headers:
            # Browsers always send it: no web page that the user happens to visit may join the fleet.
            raise web.HTTPForbidden(text="the control channel is not for browsers")
        if len(self._strangers) >= MAX_STRANGERS:
            raise web.HTTPServiceUnavailable(text="too many are waiting to be let in; try again later")
        socket = web.WebSocketResponse(
            autoping=False, timeout=CLOSE_S, max_msg_size=self._max_message_bytes, compress=False
        )
        await socket.prepare(request)
        peer_id = next(self._numbers)
        conversation = Conversation(
            socket,
            self._decoder,
            lambda message, size: self._hear(peer_id, message, size),
            self._silence_s,
            LOOKS_PER_PING,
        )
        self._strangers[peer_id] = Stranger()
        self._conversations[peer_id] = conversation
        self.events.put(Connected(peer_id))
        why = "this side is closing"
        try:
            why = await conversation.run()
        finally:
            del self._conversations[peer_id]
            self._strangers.pop(peer_id, None)
            self.events.put(Disconnected(peer_id, why))
        await conversation.close(why)
        return socket

    def _hear(self, peer_id: int, message: In, size: int) -> None:
        stranger = self._strangers.get(peer_id)
        if stranger is not None and not stranger.may_say(size):
            self.dropped_messages += 1
        else:
            self.events.put(Received(peer_id, message))

    async def _blob(self, request: web.Request) -> web.Response:
        data = self._blobs.get(request.match_info["digest"])
        if data is None:
            raise web.HTTPNotFound(text="no such blob")
        return web.Response(body=data)

    def _with(self, peer_id: int, deed: Callable[[Conversation[In]], None]) -> None:
        conversation = self._conversations.get(peer_id)
        if conversation is not None:
            deed(conversation)


class ControlClient(Generic[In, Out]):
    """A device's side. Messages, and at last one `Disconnected`, arrive in `inbox`."""

    def __init__(
        self,
        address: str,
        decode_type: Any,
        *,
        timeout_s: float = 5.0,
        silence_s: float = PATIENT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        nobody_yet: Callable[[str], None] = lambda why: None,
        trust: Trust = ON_THIS_MACHINE,
    ) -> None:
        """`nobody_yet` is told why, in another thread, if nobody answers at once: it is tried on for `timeout_s`."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"coordinator address {address!r}: give HOST:PORT")
        self.inbox: queue.Queue[Received[In] | Disconnected] = queue.Queue()
        self.address = address
        self._decoder: msgspec.json.Decoder[In] = msgspec.json.Decoder(decode_type)
        self._silence_s = silence_s
        self._max_message_bytes = max_message_bytes
        self._nobody_yet = nobody_yet
        self._tls = trust.client_context()
        self._url = f"{'http' if self._tls is None else 'https'}://{address}"
        self._thread = LoopThread("control client")
        try:
            self._session, self._conversation, self._talk = self._thread.run(self._connect(timeout_s), timeout_s + 5.0)
        except BaseException:
            self._thread.stop()
            raise

    def send(self, message: Out) -> None:
        """Queue a message, from any thread. Once the connection is over it goes nowhere: `Disconnected` says so."""
        self._thread.post(self._conversation.post, msgspec.json.encode(message))

    def fetch(self, digest: str, timeout_s: float) -> bytes:
        """The bytes with this SHA-256, from the coordinator. DeviceError when they do not come or are not those."""
        try:
            data = self._thread.run(self._get(digest, timeout_s), timeout_s + 1.0)
        except (TimeoutError, aiohttp.ClientError) as error:
            why = str(error) or f"nothing came in {timeout_s:.1f} s"
            raise DeviceError(f"cannot fetch {digest[:12]} from {self.address}: {why}; try again") from error
        if data is None:
            raise DeviceError(f"{self.address} does not offer {digest[:12]}; restart this device so that it joins anew")
        if hashlib.sha256(data).hexdigest() != digest:
            raise DeviceError(f"what {self.address} sent as {digest[:12]} is something else; do not trust this network")
        return data

    def close(self) -> None:
        """End the connection; more than once does no harm."""
        if self._thread.alive:
            with contextlib.suppress(TimeoutError):  # the other side does not say goodbye: nothing is lost by that
                self._thread.run(self._stop(), 10.0)
            self._thread.stop()

    # --- in the loop's thread

    async def _connect(self, timeout_s: float) -> tuple[aiohttp.ClientSession, Conversation[In], asyncio.Task[None]]:
        session = aiohttp.ClientSession()
        try:
            socket = await self._open(session, timeout_s)
        except BaseException:  # also when whoever waits for it gives up
            await session.close()
            raise
        conversation = Conversation(socket, self._decoder, self._deliver, self._silence_s)
        return session, conversation, asyncio.create_task(self._converse(conversation))

    async def _open(self, session: aiohttp.ClientSession, timeout_s: float) -> aiohttp.ClientWebSocketResponse:
        """The WebSocket; a coordinator that is not there yet is tried again until the deadline."""
        deadline, said = time.monotonic() + timeout_s, False
        while True:
            left_s = max(deadline - time.monotonic(), RETRY_S)
            try:
                # Awaited inside the deadline: connecting to a host that drops packets takes minutes to fail.
                return await asyncio.wait_for(self._knock(session), min(left_s, KNOCK_S))
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                if left_s <= RETRY_S:
                    raise DeviceError(
                        f"no coordinator at {self.address} after {timeout_s:.1f} s ({_unreached(error)}); "
                        "start it, or check host, port and firewall"
                    ) from error
                if not said:
                    self._nobody_yet(_unreached(error))
                said = True
                await asyncio.sleep(RETRY_S)
            except aiohttp.ClientError as error:
                raise self._turned_away(error) from error

    def _turned_away(self, error: aiohttp.ClientError) -> PotluckError:
        if getattr(error, "status", None) != web.HTTPForbidden.status_code:
            return InputError(
                f"somebody else listens at {self.address}, not a potluck coordinator ({_answer(error)}); "
                "give the address that potluck train says"
            )
        return DeviceError(
            f"{self.address} does not let this device in: it is on no network that the coordinator trusts; "
            "start that with a --plain-network that this device is in"
        )

    async def _knock(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        return await session.ws_connect(
            f"{self._url}{CONTROL_PATH}",
            ssl=self._tls or True,
            autoping=False,
            max_msg_size=self._max_message_bytes,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
        )

    async def _converse(self, conversation: Conversation[In]) -> None:
        why = await conversation.run()
        self.inbox.put(Disconnected(SERVER_PEER_ID, why))
        await conversation.close(why)

    async def _stop(self) -> None:
        self._conversation.end("this side is closing")
        try:
            await self._talk
        finally:
            await self._session.close()

    async def _get(self, digest: str, timeout_s: float) -> bytes | None:
        """The body, or None when the coordinator does not have it."""
        whole = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.get(f"{self._url}/blob/{digest}", timeout=whole, ssl=self._tls or True) as response:
            if response.status == web.HTTPNotFound.status_code:
                return None
            response.raise_for_status()
            return await response.read()

    def _deliver(self, message: In, size: int) -> None:
        self.inbox.put(Received(SERVER_PEER_ID, message))


def _unreached(error: Exception) -> str:
    """Why nobody was reached, without the words of the layers in between."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or "no answer"


def _answer(error: aiohttp.ClientError) -> str:
    """What came instead of a WebSocket."""
    return f"HTTP {error.status}" if isinstance(error, aiohttp.WSServerHandshakeError) else "no HTTP"


def _cannot_listen(host: str, port: int, error: OSError) -> InputError:
    if error.errno == errno.EADDRINUSE:
        return InputError(f"port {port} on {host} is in use; stop what uses it, or give another port (0: any free one)")
    return InputError(
        f"cannot listen on {host}:{port} ({error.strerror}); give an address of this machine and a free port"
    )

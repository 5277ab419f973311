"""The parameter server on the network: a thread for every worker, which takes its pushes and answers them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import msgspec
import torch

from potluck.errors import InputError, LinkError, PotluckError
from potluck.paramserver.messages import PATIENCE_S, PULL, PUSH, PullWords, PushWords, worker_link
from potluck.paramserver.server import Admission, ParameterServer, Release, Reply, Weights
from potluck.tensors.vectors import receive_vector, send_vector
from potluck.wire.link import Link
from potluck.wire.messages import Durable, FromCoordinator, Repace, Work

TERM = 1  # of a server's link: it lasts as long as the server
_AGAIN_S = 1.0  # after which a push that had no room is tried again
_IN_A_WINDOW = 2  # models that may be under way to a worker: nobody waits for one that is slow


class Serving:
    """Workers come and go; what each pushes is applied once, and whoever may go on is told."""

    def __init__(
        self, server: ParameterServer, link: Link, run: str, send: Callable[[str, FromCoordinator], None],
        pushed: Callable[[PushWords, Reply], None], lost: Callable[[str, int, str], None],
        failed: Callable[[Exception], None], stuck: Callable[[PotluckError], None], lr_scale: Callable[[], float],
        timeout_s: float,
    ) -> None:  # fmt: skip
        """`pushed` is told of every push and what became of it, `lost` of every worker whose link broke, `stuck` of
        pushes that cannot be written down now, `failed` of whatever else goes wrong, from any thread."""
        self._server, self._link, self._run, self._send = server, link, run, send
        self._pushed, self._lost, self._failed, self._stuck = pushed, lost, failed, stuck
        self._lr_scale, self._timeout_s = lr_scale, timeout_s
        self._incarnations: dict[str, int] = {}
        self._durable: dict[str, int] = {}
        self._first: dict[str, Admission] = {}  # of those that are let in and have no link yet
        self._entered_s: dict[str, float] = {}
        self._over = threading.Event()
        flat = server.flat
        self._window_bytes = _IN_A_WINDOW * flat.size * flat.dtype.itemsize + (1 << 20)
        link.adopt(TERM, {}, self._window_bytes)

    def enter(self, worker: str, samples: int, incarnation: int = 0, step_s: float | None = None) -> None:
        """Lets a worker in; one that was here before as this incarnation goes on where it was, if that is known."""
        now_s = time.monotonic()
        admission = self._server.back(worker, incarnation, now_s) if incarnation else None
        if admission is None:
            admission = self._server.enter(worker, samples, now_s, step_s)
        self._incarnations[worker] = admission.incarnation
        self._durable.pop(worker, None)
        self._first[worker], self._entered_s[worker] = admission, now_s
        self.spread(admission.others)
        self._send(
            worker,
            Work(
                run=self._run, incarnation=admission.incarnation, address=self._link.address, term=TERM,
                window_bytes=self._window_bytes, waits=admission.waits, pace=admission.pace, seen=admission.seen,
                durable_up_to=self._server.durable_up_to(worker),
            ),
        )  # fmt: skip

    def met(self, worker: str, incarnation: int, address: str) -> None:
        """A worker's link is open: it gets its first weights, and is listened to."""
        admission = self._first.get(worker)
        if admission is None or admission.incarnation != incarnation:
            return
        del self._first[worker]
        peer = worker_link(worker, incarnation)
        self._link.meet(peer, address)
        # One that is back has its weights; that it hears something tells it that it is listened to.
        words = PullWords(status="first", version=admission.weights.version, lr_scale=self._lr_scale())
        self._answer(peer, 0, words, None if admission.back else admission.weights)
        threading.Thread(target=self._attend, args=(worker, incarnation), name=f"potluck-{peer}", daemon=True).start()

    def is_here(self, worker: str, incarnation: int) -> bool:
        return self._incarnations.get(worker) == incarnation

    def overdue(self) -> tuple[str, ...]:
        """Who was let in long ago and has no link yet."""
        now_s = time.monotonic()
        return tuple(worker for worker in self._first if now_s - self._entered_s[worker] > self._timeout_s)

    def leave(self, worker: str) -> None:
        incarnation = self._incarnations.pop(worker, None)
        self._first.pop(worker, None)
        if incarnation is not None:
            self._link.forget(worker_link(worker, incarnation))
            self.spread(self._server.leave(worker, time.monotonic()))

    def spread(self, reply: Reply) -> None:
        """Tells everybody concerned what follows from an event: who may go on, and whose pace is new."""
        for worker, release in reply.go.items():
            self._release(worker, release, reply)
        for worker, pace in reply.paces.items():
            if worker not in reply.go:
                self._tell(worker, Repace(pace=pace))

    def save(self) -> int:
        """Puts the newest weights on disk and tells workers which of their pushes need not be kept any more."""
        version = self._server.save()
        for worker in tuple(self._incarnations):
            up_to = self._server.durable_up_to(worker)
            incarnation = self._incarnations.get(worker)
            if up_to and incarnation is not None and self._durable.get(worker) != up_to:
                self._durable[worker] = up_to
                self._tell(worker, Durable(incarnation=incarnation, up_to=up_to))
        return version

    def close(self) -> None:
        """Ends every thread; no push is applied any more."""
        self._over.set()
        self._server.end()
        self._link.cancel("the server is closing")

    def _tell(self, worker: str, message: FromCoordinator) -> None:
        with contextlib.suppress(KeyError):  # it has just left
            self._send(worker, message)

    def _attend(self, worker: str, incarnation: int) -> None:
        """Takes one push after the other, until the worker is forgotten."""
        peer, flat, number = worker_link(worker, incarnation), self._server.flat, 0
        try:
            while True:
                number += 1
                words, difference = receive_vector(
                    self._link, peer, PUSH, number, flat.dtype, flat.size, PATIENCE_S, self._timeout_s
                )
                said = msgspec.msgpack.decode(words, type=PushWords)
                if difference is None or (said.push.worker, said.push.incarnation) != (worker, incarnation):
                    raise LinkError(f"damaged words arrived from {worker}; the link is broken")
                if self._over.is_set():
                    return
                self._apply(worker, said, difference)
        except (LinkError, msgspec.MsgspecError) as error:
            if not self._over.is_set():
                self._lost(worker, incarnation, str(error))
        except Exception as error:  # nobody would know that this thread has ended
            self._failed(error)

    def _apply(self, worker: str, said: PushWords, difference: torch.Tensor) -> None:
        reply = self._written(said, difference)
        self._pushed(said, reply)
        if reply.status in ("fenced", "early"):
            words = PullWords(status=reply.status, reason=reply.reason)
            self._answer(worker_link(worker, said.push.incarnation), said.push.sequence, words, None)
        self.spread(reply)

    def _written(self, said: PushWords, difference: torch.Tensor) -> Reply:
        """What became of a push. One that the ledger has no room for never happened, and is tried again."""
        while True:
            try:
                return self._server.push(said.push, difference, said.overhead_s, time.monotonic())
            except InputError:  # of the policy, which will not be another one
                raise
            except PotluckError as error:
                self._stuck(error)
                if self._over.wait(_AGAIN_S):
                    raise LinkError("the server is closing") from error

    def _release(self, worker: str, release: Release, reply: Reply) -> None:
        if self._incarnations.get(worker) != release.incarnation:
            return
        words = PullWords(
            status="skipped" if release.skipped else "applied", version=release.weights.version,
            durable_up_to=self._server.durable_up_to(worker), pace=reply.paces.get(worker), lr_scale=self._lr_scale(),
            reason=release.skipped or reply.reason,
        )  # fmt: skip
        self._answer(worker_link(worker, release.incarnation), release.sequence, words, release.weights)

    def _answer(self, peer: str, number: int, words: PullWords, weights: Weights | None) -> None:
        vector = None if weights is None else weights.vector
        with contextlib.suppress(LinkError):  # who listens to it notices too
            send_vector(self._link, peer, PULL, number, msgspec.msgpack.encode(words), vector, self._timeout_s)

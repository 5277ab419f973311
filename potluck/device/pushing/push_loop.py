"""A device that trains the whole model on data of its own, and pushes and pulls while it trains on."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch

from potluck.device.host.throttle import Throttle
from potluck.device.pushing.held_out_loss import HeldOutLoss
from potluck.device.pushing.local_trainer import LocalTrainer
from potluck.errors import Cancelled, DeviceError
from potluck.memory_limit import beyond_limit
from potluck.paramserver.applied_pushes import Push
from potluck.paramserver.client import Client, Next
from potluck.paramserver.messages import PATIENCE_S, PULL, PUSH, HeldOut, PullWords, PushWords
from potluck.tensors.vectors import receive_vector, send_vector
from potluck.types import COORDINATOR, Pace
from potluck.wire.link import Link
from potluck.wire.messages import Durable, Work

_JUDGING = 0.03  # of its time goes into judging by samples of its own: a loss now and then, without slowing training
_LOOK_S = 0.2  # how soon one that waits notices that it is to stop

News = Pace | Durable
_Answer = tuple[Push, PullWords, torch.Tensor | None]


class PushLoop:
    """Trains in the thread that calls `run`; differences and weights travel in another."""

    def __init__(
        self, name: str, trainer: LocalTrainer, throttle: Throttle, timeout_s: float, judge: HeldOutLoss | None = None
    ) -> None:
        self._name, self._trainer, self._throttle, self._timeout_s = name, trainer, throttle, timeout_s
        self._judge, self._judging_s, self._judging_since_s = judge, 0.0, 0.0
        self._held_out: HeldOut | None = None  # found since the last push
        self._client: Client | None = None
        self._base = self._at_push = trainer.vector()
        self._differences: dict[int, torch.Tensor] = {}  # of pushes that are kept
        self._lr_scale = 1.0
        self._heard: queue.SimpleQueue[News | _Answer | tuple[Link, Exception]] = queue.SimpleQueue()
        self._carrier = ThreadPoolExecutor(max_workers=1, thread_name_prefix="potluck-pushes")
        self._link: Link | None = None
        self._sent = 0  # pushes over this link
        self._cpu_s = 0.0  # of steps since the last push
        self._leaving: Callable[[], None] | None = None

    @property
    def incarnation(self) -> int:
        """Who it is for the server; 0 before it was let in."""
        return self._client.incarnation if self._client is not None else 0

    # --- from the listening thread

    def hear(self, news: News) -> None:
        """From the listening thread: another pace, or which of its pushes cannot be lost any more."""
        self._heard.put(news)

    def leave(self, then: Callable[[], None]) -> None:
        """Pushes what it has, then calls this."""
        self._leaving = then

    # --- from the working thread

    def begin(self, link: Link, order: Work) -> None:
        """Takes the first weights; or goes on as who it was, and pushes again what a restart of the server lost."""
        self._link, self._sent = link, 0
        # Nothing is sent before this is here: only then does the server listen.
        size = self._trainer.flat.size
        words, vector = receive_vector(link, COORDINATOR, PULL, 0, self._trainer.flat.dtype, size, self._timeout_s)
        first = msgspec.msgpack.decode(words, type=PullWords)
        if self._client is not None and order.incarnation == self._client.incarnation:
            self._go_on(self._client, order)
            return
        self._base, self._lr_scale = self._fitting(vector), first.lr_scale
        self._judging_s, self._judging_since_s = 0.0, time.monotonic()
        self._trainer.load(self._base)
        self._differences = {}
        self._client = Client(
            self._name, order.incarnation, order.pace, waits=order.waits, version=first.version, now_s=time.monotonic()
        )

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Trains until interrupted; a LinkError if the server cannot be reached."""
        client = self._known()
        while not interrupted():
            self._take_in(wait=False)
            if self._leaving is not None:
                self._hand_over(client, self._leaving)
                continue
            match client.next(time.monotonic()):
                case Next.WAIT:
                    self._take_in(wait=True)
                case Next.PUSH:
                    self._push(client)
                case Next.GO_ON:
                    began_s = time.thread_time()
                    with self._throttle:
                        samples, loss = self._trainer.step(self._lr_scale)
                    self._cpu_s += time.thread_time() - began_s
                    client.step_done(samples, loss, time.monotonic())
                    self._judge_a_little()

    def close(self) -> None:
        """Waits for nothing."""
        self._carrier.shutdown(wait=False, cancel_futures=True)

    def _go_on(self, client: Client, order: Work) -> None:
        again = client.server_back(order.seen, order.durable_up_to)
        client.go_on(order.pace, time.monotonic(), waits=order.waits)
        if again is None:
            raise DeviceError(f"the server knows pushes of {self._name} up to {order.seen} only; join again")
        for push in again:
            with beyond_limit():  # the first has a thread made for it
                self._carrier.submit(self._carry, push, self._differences[push.sequence], client.overhead_s)

    def _hand_over(self, client: Client, then: Callable[[], None]) -> None:
        """Pushes what it trained; once that is answered it has nothing left to do."""
        if client.has_news and client.may_push:
            self._push(client)
        elif not client.has_news and client.under_way is None:
            then()
            self._leaving = lambda: None
        self._take_in(wait=True)

    def _push(self, client: Client) -> None:
        self._at_push = self._trainer.vector()
        push = client.push(time.monotonic())
        self._differences[push.sequence] = self._trainer.flat.update(self._at_push, self._base)
        kept = {p.sequence for p in client.kept}
        self._differences = {n: d for n, d in self._differences.items() if n in kept}
        difference, held_out = self._differences[push.sequence], self._held_out
        with beyond_limit():
            self._carrier.submit(self._carry, push, difference, client.overhead_s, self._cpu_s, held_out)
        self._cpu_s, self._held_out = 0.0, None

    def _take_in(self, *, wait: bool) -> None:
        """Whatever was heard."""
        client = self._known()
        while True:
            try:
                news = self._heard.get(timeout=_LOOK_S) if wait else self._heard.get_nowait()
            except queue.Empty:
                return
            wait = False
            match news:
                case (link, Exception() as error):
                    if link is self._link:  # else of a connection of before
                        raise error
                case Pace():
                    client.repace(news)
                case Durable():
                    if news.incarnation == client.incarnation:  # else of who it was before
                        client.durable(news.up_to)
                case (push, words, vector):
                    self._answered(client, push, words, vector)

    def _answered(self, client: Client, push: Push, words: PullWords, vector: torch.Tensor | None) -> None:
        if push.incarnation != client.incarnation:
            return
        if words.status in ("fenced", "early"):
            raise DeviceError(f"the server refused push {push.sequence}: {words.reason}")
        self._lr_scale = words.lr_scale
        if client.answered(push.sequence, words.version, words.durable_up_to, words.pace, time.monotonic()):
            self._base = self._pulled_in(self._fitting(vector), words)
            if self._judge is not None and not self._judge.under_way:
                self._judge.begin(words.version, self._pulled())

    def _pulled_in(self, newest: torch.Tensor, words: PullWords) -> torch.Tensor:
        """Goes on from the newest weights. What was trained after a push that was left out rests on it: out too."""
        if words.status == "skipped":
            self._known().drop_news()
            return self._trainer.begin_anew(newest)
        return self._trainer.catch_up(newest, self._at_push)

    def _pulled(self) -> dict[str, torch.Tensor]:
        """What it pulled last, by name, with its own counters and the like, which do not travel."""
        own = {name: tensor.clone() for name, tensor in self._trainer.tensors().items()}
        return {**own, **self._trainer.flat.tensors(self._base)}

    def _judge_a_little(self) -> None:
        """One batch of what it judges by, as often as that takes little of its time."""
        began_s = time.monotonic()
        if self._judge is None or not self._judge.under_way:
            return
        if self._judging_s > _JUDGING * (began_s - self._judging_since_s):
            return
        with self._throttle:
            found = self._judge.step()
        self._judging_s += time.monotonic() - began_s
        self._held_out = found or self._held_out

    def _fitting(self, vector: torch.Tensor | None) -> torch.Tensor:
        if vector is None or len(vector) != self._trainer.flat.size:
            raise DeviceError("the server's weights are of another model; join again")
        return vector

    def _known(self) -> Client:
        if self._client is None:
            raise DeviceError("told to train before it was let in; join again")
        return self._client

    # --- in the carrying thread

    def _carry(
        self, push: Push, difference: torch.Tensor, overhead_s: float, cpu_s: float = 0.0,
        held_out: HeldOut | None = None,
    ) -> None:  # fmt: skip
        words = PushWords(push=push, overhead_s=overhead_s, cpu_s=cpu_s, held_out=held_out)
        link = self._link
        if link is None:
            return
        try:
            self._heard.put((push, *self._exchanged(link, words, difference)))
        except Cancelled:
            return  # the link is gone, and somebody else says why
        except Exception as error:  # whatever it is, who waits for the answer must know
            self._heard.put((link, error))

    def _exchanged(
        self, link: Link, said: PushWords, difference: torch.Tensor
    ) -> tuple[PullWords, torch.Tensor | None]:
        self._sent += 1
        send_vector(link, COORDINATOR, PUSH, self._sent, msgspec.msgpack.encode(said), difference, self._timeout_s)
        flat = self._trainer.flat
        words, vector = receive_vector(
            link, COORDINATOR, PULL, said.push.sequence, flat.dtype, flat.size, PATIENCE_S, self._timeout_s
        )
        return msgspec.msgpack.decode(words, type=PullWords), vector

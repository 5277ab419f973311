"""Sends every round's inputs and labels straight to the stages that use them, a little ahead of training."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

import torch

from potluck.coordinator.samples.loading import Batch, Loader
from potluck.errors import Cancelled, PotluckError
from potluck.plan.routes import micro_batch_sizes, rows
from potluck.program.layout import PlanLayout
from potluck.tensors.parcels import pack
from potluck.types import Plan
from potluck.wire.link import Link, Tag


@dataclass(frozen=True)
class FedRound:
    """A round whose samples are on their way."""

    round: int
    epoch: int
    ids: tuple[int, ...]
    sizes: tuple[int, ...]
    total_weight: float


def send_feeds(
    link: Link, layout: PlanLayout, mode: str, number: int, batch: Batch, sizes: tuple[int, ...], timeout_s: float
) -> None:
    """Sends each device its rows of what its stage uses; the last stage also gets the samples' loss weights."""
    plan: Plan = layout.plan
    start = 0
    for micro_batch, size in enumerate(sizes):
        for stage, spec in enumerate(plan.stages):
            if not layout.is_fed(mode, stage):
                continue
            names = layout.feed_names(mode, stage)
            weighted = mode == "train" and bool(layout.pieces[mode][stage].outputs)
            for part in rows(spec, micro_batch, size, plan):
                span = slice(start + part.start, start + part.stop)
                tensors: list[torch.Tensor | None] = [batch.feeds[n][span] for n in names]
                if weighted:
                    tensors.append(batch.weights[span])
                tag = Tag(f"feed-{mode}", number, micro_batch, stage, part.start)
                link.send(part.device, tag, pack(tensors), timeout_s)
        start += size


class Feeder:
    """A thread that keeps the feeds of the next rounds on their way."""

    def __init__(
        self, loader: Loader, layout: PlanLayout, link: Link, first: int, ahead: int, timeout_s: float
    ) -> None:
        self._loader, self._layout, self._link, self._timeout_s = loader, layout, link, timeout_s
        self._made: queue.Queue[FedRound | PotluckError] = queue.Queue()
        self._room = threading.Semaphore(ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(first,), name="potluck-feeder", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> FedRound:
        """The next round, in order."""
        try:
            made = self._made.get(timeout=timeout_s)
        except queue.Empty:
            raise PotluckError(
                f"the samples of a round were not ready after {timeout_s:.0f} s; is the data slow?"
            ) from None
        if isinstance(made, PotluckError):
            raise made
        return made

    def done(self) -> None:
        """One round is committed: there is room to feed another."""
        self._room.release()

    def close(self) -> None:
        self._stopped.set()
        self._room.release()
        self._thread.join(timeout=1.0)  # one that waits in the user's data or on a dead link dies with the process

    def _work(self, first: int) -> None:
        try:
            for round in range(first, self._loader.order.rounds):
                self._room.acquire()
                if self._stopped.is_set():
                    return
                self._made.put(self._feed(round))
        except Cancelled:
            return
        except PotluckError as error:
            self._made.put(error)

    def _feed(self, round: int) -> FedRound:
        samples = self._loader.order.round(round)
        batch = self._loader.get(round)
        sizes = micro_batch_sizes(len(batch.ids), self._layout.plan.micro_batch_size)
        send_feeds(self._link, self._layout, "train", round, batch, sizes, self._timeout_s)
        return FedRound(round, samples.epoch, batch.ids, sizes, float(batch.weights.sum()))

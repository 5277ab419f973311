"""Walks the action list of one device: receive, forward, send, receive gradients, backward, send, reduce, commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import torch

from potluck.compute.runner import Rows
from potluck.device.host.stop_watch import StopWatch
from potluck.device.host.throttle import Throttle
from potluck.device.stage.exchange import Exchange, Site, TensorMap
from potluck.device.stage.reduce import Reducer
from potluck.device.stage.sums import Sums
from potluck.plan.routes import Part
from potluck.plan.schedule.action_list import Action, actions
from potluck.tensors.parcels import pack
from potluck.types import COORDINATOR
from potluck.wire.link import Tag
from potluck.wire.messages import Begin, Evaluate, LossPart, Ready, Verdict


class Committer(Protocol):
    """Who decides what becomes of a round: the coordinator, or a lone device itself."""

    def decide(self, ready: Ready, begin: Begin, attempt: int) -> Verdict:
        """The verdict on a round this device is ready for; called once per attempt."""


class Executor:
    """One device's side of a plan."""

    def __init__(self, site: Site, sums: Sums, committer: Committer, throttle: Throttle) -> None:
        self.site, self.committer, self.throttle = site, committer, throttle
        self.stage = site.stage
        self.answers_for = sums.answerable(
            site.me, [n for n in site.stage.trainable if site.layout.owner[n] == site.index]
        )
        self.reducer = Reducer(site, sums)
        # Where an earlier stage waits for gradients, those go first: while it computes, there is time to sum.
        self.sums_early = self.reducer.busy and not site.layout.awaits_gradients(site.index)
        self.watch = StopWatch()

    def run_round(self, begin: Begin) -> Verdict:
        """Trains one round; returns its verdict, already obeyed."""
        feeds: dict[int, list[torch.Tensor]] = {}
        self.watch.lap("order")
        for attempt in range(2):
            ready = _Round(self, begin, feeds, look=attempt > 0).walk()
            verdict = self.committer.decide(ready, begin, attempt)
            self.watch.lap("verdict")
            if verdict.kind != "retry":
                break
            self.stage.abort(begin.round)
        if verdict.kind == "commit":
            with self.throttle:
                self.stage.commit(begin.round, verdict.lr_scale, verdict.clip)
        else:
            self.stage.abort(begin.round)
        self.watch.lap("update")
        return verdict

    def evaluate(self, order: Evaluate) -> None:
        """Runs micro-batches forward with the evaluation program; the last stage's outputs go to the coordinator."""
        piece = self.stage.eval_piece
        for micro_batch, size in enumerate(order.sizes):
            part = self.site.part(micro_batch, size)
            if part is None:
                continue
            exchange = Exchange(self.site, "eval", order.number, micro_batch, size, part)
            feeds = dict(zip(piece.feeds, exchange.feed_tensors(), strict=False))
            received = exchange.activations()
            with self.throttle:
                values = self.stage.evaluate(part.stop - part.start, feeds, received)
            exchange.send_outputs(values)
            if piece.outputs:
                tag = Tag("outputs", order.number, micro_batch, 0, part.start)
                message = pack([values[v] for v in piece.outputs])
                self.site.link.send(COORDINATOR, tag, message, self.site.timeout_s)


class _Round:
    """One attempt at one round."""

    def __init__(self, owner: Executor, begin: Begin, feeds: dict[int, list[torch.Tensor]], look: bool) -> None:
        self.owner, self.begin, self.kept_feeds, self.look = owner, begin, feeds, look
        self.losses: list[LossPart] = []
        self.trouble = ""
        self.finite = True
        self.inputs: dict[int, tuple[TensorMap, TensorMap, float]] = {}
        self.outputs: dict[int, TensorMap] = {}
        self.gradients: dict[int, TensorMap] = {}
        self.backs: dict[int, dict[int, torch.Tensor | None]] = {}
        self.norms: dict[str, float] = {}
        self.owing: list[int] = []  # micro-batches whose weight gradients wait

    def walk(self) -> Ready:
        """Does everything up to the report."""
        owner, begin = self.owner, self.begin
        owner.reducer.begin(begin.round)
        listed = actions(owner.site.plan, owner.site.me, len(begin.sizes))
        mine = {j for j, size in enumerate(begin.sizes) if owner.site.part(j, size) is not None}
        backwards = [action.micro_batch for action in listed if action.kind == "backward"]
        self.last = next((j for j in reversed(backwards) if j in mine), -1)
        for action in listed:
            if action.kind == "reduce":
                self.owner.reducer.finish(self._measure_norms)
            elif action.micro_batch >= 0:
                size = begin.sizes[action.micro_batch]
                part = owner.site.part(action.micro_batch, size)
                if part is not None:
                    self._act(action, part, size)
            owner.watch.lap(action.kind)
        return msgspec.structs.replace(self._ready(), spent_s=owner.watch.take())

    def _act(self, action: Action, part: Part, size: int) -> None:
        j = action.micro_batch
        exchange = Exchange(self.owner.site, "train", self.begin.round, j, size, part)
        match action.kind:
            case "receive_inputs":
                self._meanwhile(exchange.inputs_are_here, action.kind)
                self.inputs[j] = self._receive(exchange)
            case "forward":
                self._forward(j, part)
            case "send_outputs":
                exchange.send_outputs(self.outputs.pop(j))
            case "receive_gradients":
                self._meanwhile(exchange.gradients_are_here, action.kind)
                self.gradients[j] = exchange.gradients()
            case "backward":
                self._backward(j)
            case "send_gradients":
                exchange.send_gradients(self.backs.pop(j))
            case "weights":
                if j in self.owing:
                    self._weights(j)
            case "reduce" | "ready" | "verdict":
                raise AssertionError(f"{action.kind} belongs to the whole round")

    def _receive(self, exchange: Exchange) -> tuple[TensorMap, TensorMap, float]:
        stage = self.owner.stage
        j = exchange.micro_batch
        if j not in self.kept_feeds:  # kept until the verdict, in case of a retry
            self.kept_feeds[j] = exchange.feed_tensors()
        feeds = dict(zip(stage.piece.feeds, self.kept_feeds[j], strict=False))
        scale = 0.0
        if stage.piece.outputs:
            scale = float(self.kept_feeds[j][-1].double().sum()) / self.begin.total_weight
        return feeds, exchange.activations(), scale

    def _forward(self, j: int, part: Part) -> None:
        stage, owner = self.owner.stage, self.owner
        feeds, received, scale = self.inputs.pop(j)
        where = Rows(self.begin.round, j, part.start, part.stop)
        with owner.throttle:
            self.outputs[j] = stage.forward(where, feeds, received, scale)
        loss = stage.loss(self.begin.round, j)
        if loss is not None:
            self.finite = self.finite and math.isfinite(loss)
            self.losses.append(LossPart(j, part.start, _plain(loss), scale))
        if self.look and not self.trouble:
            self._look_at(j, "forward", (*feeds.values(), *received.values()), self.outputs[j].values(), loss)

    def _backward(self, j: int) -> None:
        # Later backwards would add to what is summed already; a GPU's gradients are not there when its call returns.
        summing = j == self.last and self.owner.sums_early and self.owner.stage.device.type == "cpu"
        noted = self.owner.reducer.ready if summing else None
        with self.owner.throttle:
            self.backs[j] = self.owner.stage.backward(self.begin.round, j, self.gradients.pop(j, {}), noted)
        if self.owner.stage.late_weights:
            self.owing.append(j)
        if self.look and not self.trouble:
            results = [*self.backs[j].values(), *self.owner.stage.gradients(self.begin.round).values()]
            self._look_at(j, "backward", (), [t for t in results if t is not None], None)

    def _meanwhile(self, here: Callable[[], bool], waiting: str) -> None:
        """Works out weight gradients that were put off, while something is awaited."""
        while self.owing and not here():
            self.owner.watch.lap(waiting)
            self._weights(self.owing[0])
            self.owner.watch.lap("weights")

    def _weights(self, j: int) -> None:
        with self.owner.throttle:
            self.owner.stage.weights(self.begin.round, j)
        self.owing.remove(j)

    def _look_at(
        self, j: int, what: str, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor], loss: float | None
    ) -> None:
        """Remembers where a non-finite value first appeared: in what was given, or in what was made of it."""
        where = f"stage {self.owner.site.index} ({what}, micro-batch {j})"
        if any(not _finite(t) for t in given):
            self.trouble = "" if self.owner.site.index else f"non-finite input data reached {where}"
            return
        bad_loss = loss is not None and not math.isfinite(loss)
        if bad_loss or any(not _finite(t) for t in made):
            self.trouble = f"non-finite values first appeared in {where}"

    def _measure_norms(self) -> None:
        with self.owner.throttle:
            self.norms = self.owner.stage.squared_norms(self.begin.round, self.owner.answers_for)

    def _ready(self) -> Ready:
        norms = self.norms
        finite = self.finite and all(math.isfinite(n) for n in norms.values())
        if not all(_finite(value) for value in self.owner.stage.running.lonely(self.begin.round)):
            finite, self.trouble = False, "BatchNorm met a micro-batch of one sample, whose variance is not defined,"
        return Ready(
            round=self.begin.round, losses=tuple(self.losses), squared_norms={k: _plain(v) for k, v in norms.items()},
            finite=finite, trouble=self.trouble,
        )  # fmt: skip


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _plain(number: float) -> float:
    """A number JSON can say; the flag `finite` tells the rest."""
    return number if math.isfinite(number) else 0.0

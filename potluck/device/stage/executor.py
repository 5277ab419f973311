"""Walks the action list of one device: receive, forward, send, receive gradients, backward, send, reduce, commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
from potluck.plan.schedule.action_list import Action
from potluck.plan.schedule.segments import UnderWay, segment
from potluck.tensors.parcels import pack
from potluck.types import COORDINATOR
from potluck.wire.link import Tag
from potluck.wire.messages import Begin, Evaluate, LossPart, Ready, Verdict


class Committer(Protocol):
    """Who decides what becomes of a round: the coordinator, or a lone device itself."""

    def report(self, ready: Ready, begin: Begin, attempt: int) -> None:
        """This device is ready for the verdict; called once per attempt."""

    def verdict(self, begin: Begin) -> Verdict:
        """The verdict on a round that was reported."""

    def heard(self) -> list[Verdict]:
        """Verdicts that came before everything was given up."""


Settled = Callable[[Verdict, bool], None]  # a verdict that is obeyed, and whether nothing is under way any more


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
        self._rounds: dict[int, _Round] = {}
        self._under_way = UnderWay()

    def train(self, begin: Begin, settled: Settled) -> bool:
        """Trains a round, until the next one begins; whether something is under way then."""
        self.watch.lap("order")
        listed, self._under_way = segment(
            self.site.plan, self.site.me, len(begin.sizes), self._under_way, follows=begin.follows
        )
        self._rounds[begin.round] = _Round(self, begin, {}, self._last_backward(begin, listed), look=False)
        for place, action in enumerate(listed):
            round = self._rounds[begin.round - action.ago]
            if action.kind == "verdict":
                verdict = self._verdict(round, listed)
                settled(verdict, place + 1 == len(listed) or verdict.kind == "stop")
                if verdict.kind == "stop":
                    return False
            else:
                round.act(action)
        return bool(self._rounds)

    def _last_backward(self, begin: Begin, listed: Sequence[Action]) -> int:
        """The micro-batch whose gradients this device adds last; -1: it has none in this round."""
        mine = [j for j, size in enumerate(begin.sizes) if self.site.part(j, size) is not None]
        order = [a.micro_batch for a in listed if a.kind == "backward" and a.ago == 0 and a.micro_batch in mine]
        return (order if len(order) == len(mine) else mine or [-1])[-1]

    def _verdict(self, round: _Round, listed: Sequence[Action]) -> Verdict:
        """The verdict on a round, obeyed."""
        verdict = self.committer.verdict(round.begin)
        self.watch.lap("verdict")
        if verdict.kind == "retry":
            round = self._again(round, listed)
            verdict = self.committer.verdict(round.begin)
            self.watch.lap("verdict")
        self._obey(verdict)
        return verdict

    def _again(self, round: _Round, listed: Sequence[Action]) -> _Round:
        """Once more, looking for what is not finite. Only where a round ends before the next begins."""
        self.stage.abort(round.begin.round)
        again = self._rounds[round.begin.round] = _Round(self, round.begin, round.kept_feeds, round.last, look=True)
        for action in listed:
            if action.kind != "verdict":
                again.act(action)
        return again

    def _obey(self, verdict: Verdict) -> None:
        if verdict.kind == "commit":
            with self.throttle:
                self.stage.commit(verdict.round, verdict.lr_scale, verdict.clip)
            del self._rounds[verdict.round]
        else:
            self.abort()
        self.watch.lap("update")

    def settle_heard(self, settled: Settled) -> None:
        """Obeys the verdicts that came before everything was given up: what the others have committed, is."""
        for verdict in self.committer.heard():
            round = self._rounds.get(verdict.round)
            if round is None or not round.reported or verdict.kind != "commit" or verdict.round != min(self._rounds):
                return
            self._obey(verdict)
            settled(verdict, False)

    def abort(self) -> None:
        """Everything that is open is given up."""
        self._rounds.clear()
        self._under_way = UnderWay()
        self.stage.abort()

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

    def __init__(
        self, owner: Executor, begin: Begin, feeds: dict[int, list[torch.Tensor]], last: int, *, look: bool
    ) -> None:
        self.owner, self.begin, self.kept_feeds, self.last, self.look = owner, begin, feeds, last, look
        self.reported = False
        self.losses: list[LossPart] = []
        self.trouble = ""
        self.finite = True
        self.inputs: dict[int, tuple[TensorMap, TensorMap, float]] = {}
        self.outputs: dict[int, TensorMap] = {}
        self.gradients: dict[int, TensorMap] = {}
        self.backs: dict[int, dict[int, torch.Tensor | None]] = {}
        self.norms: dict[str, float] = {}
        self.owing: list[int] = []  # micro-batches whose weight gradients wait
        self._sums_begun = False

    def act(self, action: Action) -> None:
        """Does one thing, of all that ends with the report."""
        owner = self.owner
        if action.kind == "reduce":
            self._begin_sums()
            owner.reducer.finish(self._measure_norms)
        elif action.kind == "ready":
            self.reported = True
            ready = msgspec.structs.replace(self._ready(), spent_s=owner.watch.take())
            owner.committer.report(ready, self.begin, int(self.look))
        else:
            size = self.begin.sizes[action.micro_batch]
            part = owner.site.part(action.micro_batch, size)
            if part is not None:
                self._act(action, part, size)
        owner.watch.lap(action.kind)

    def _begin_sums(self) -> None:
        """The sums of the round before are made by now."""
        if not self._sums_begun:
            self._sums_begun = True
            self.owner.reducer.begin(self.begin.round)

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
        self._begin_sums()
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

"""Walks the action list of one device: receive, forward, send, receive gradients, backward, send, reduce, commit."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from potluck.plan.routes import Part, rows, routes
from potluck.plan.schedule import actions, stage_of
from potluck.runtime.group import Sums, reduce_gradients, share_statistics
from potluck.runtime.layout import PlanLayout
from potluck.runtime.parcels import pack, unpack
from potluck.runtime.stage import Rows, StageRunner
from potluck.runtime.throttle import Throttle
from potluck.types import COORDINATOR, Plan
from potluck.wire.link import Link, Tag
from potluck.wire.messages import Begin, Evaluate, LossPart, Ready, Verdict

TensorMap = dict[int, torch.Tensor]


class Committer(Protocol):
    """Who decides what becomes of a round: the coordinator, or a lone device itself."""

    def decide(self, ready: Ready, begin: Begin, attempt: int) -> Verdict:
        """The verdict on a round this device is ready for; called once per attempt."""


class Executor:
    """One device's side of a plan."""

    def __init__(
        self, me: str, plan: Plan, layout: PlanLayout, stage: StageRunner, sums: Sums, link: Link,
        committer: Committer, throttle: Throttle, timeout_s: float,
    ) -> None:  # fmt: skip
        self.me, self.plan, self.layout, self.stage, self.sums = me, plan, layout, stage, sums
        self.link, self.committer, self.throttle, self.timeout_s = link, committer, throttle, timeout_s
        self.index = stage_of(plan, me)
        self.group = tuple(m.device for m in plan.stages[self.index].group)
        self.answers_for = [n for n in stage.trainable if layout.owner[n] == self.index and self.group[0] == me]
        self._round: _Round | None = None

    def run_round(self, begin: Begin) -> Verdict:
        """Trains one round; returns its verdict, already obeyed."""
        feeds: dict[int, list[torch.Tensor]] = {}
        for attempt in range(2):
            self._round = work = _Round(self, begin, feeds, look=attempt > 0)
            started = time.monotonic()
            ready = work.walk()
            ready = Ready(**{**_fields(ready), "round_s": time.monotonic() - started})
            verdict = self.committer.decide(ready, begin, attempt)
            if verdict.kind != "retry":
                break
            self.stage.abort()
        if verdict.kind == "commit":
            with self.throttle:
                self.stage.commit(verdict.lr_scale, verdict.clip)
        else:
            self.stage.abort()
        return verdict

    def evaluate(self, order: Evaluate) -> None:
        """Runs micro-batches forward with the evaluation program; the last stage's outputs go to the coordinator."""
        for micro_batch, size in enumerate(order.sizes):
            part = self.part(self.index, micro_batch, size)
            if part is None:
                continue
            exchange = _Exchange(self, "eval", order.number, micro_batch, size, part)
            feeds = exchange.feeds(self.stage.eval_piece.feeds)
            received = exchange.activations()
            with self.throttle:
                values = self.stage.evaluate(part.stop - part.start, feeds, received)
            exchange.send_outputs(values)
            if self.stage.eval_piece.outputs:
                tensors = [values[v] for v in self.stage.eval_piece.outputs]
                tag = Tag("outputs", order.number, micro_batch, 0, part.start)
                self.link.send(COORDINATOR, tag, pack(tensors), self.timeout_s)

    def part(self, stage: int, micro_batch: int, size: int) -> Part | None:
        """This device's rows of a micro-batch, or None."""
        mine = [p for p in rows(self.plan.stages[stage], micro_batch, size, self.plan) if p.device == self.me]
        return mine[0] if mine else None


def _fields(ready: Ready) -> dict[str, object]:
    return {name: getattr(ready, name) for name in ready.__struct_fields__}


class _Round:
    """One attempt at one round."""

    def __init__(self, owner: Executor, begin: Begin, feeds: dict[int, list[torch.Tensor]], look: bool) -> None:
        self.owner, self.begin, self.kept_feeds, self.look = owner, begin, feeds, look
        self.losses: list[LossPart] = []
        self.trouble = ""
        self.finite = True
        self.inputs: dict[int, tuple[TensorMap, TensorMap, float]] = {}
        self.outputs: dict[int, TensorMap] = {}
        self.gradients: dict[int, dict[int, torch.Tensor | None]] = {}
        self.backs: dict[int, dict[int, torch.Tensor | None]] = {}

    def walk(self) -> Ready:
        owner, begin = self.owner, self.begin
        busy_before = owner.throttle.busy_s
        for action in actions(owner.plan, owner.me, len(begin.sizes)):
            j = action.micro_batch
            if j >= 0:
                part = owner.part(owner.index, j, begin.sizes[j])
                if part is None:  # a short micro-batch may leave a member of a group without rows
                    continue
                exchange = _Exchange(owner, "train", begin.round, j, begin.sizes[j], part)
            match action.kind:
                case "receive_inputs":
                    self.inputs[j] = self._receive(exchange)
                case "forward":
                    self._forward(j, part)
                case "send_outputs":
                    exchange.send_outputs(self.outputs.pop(j))
                case "receive_gradients":
                    self.gradients[j] = exchange.gradients()
                case "backward":
                    self._backward(j)
                case "send_gradients":
                    exchange.send_gradients(self.backs.pop(j))
                case "reduce":
                    self._reduce()
                case "ready" | "verdict":
                    pass
        return self._ready(owner.throttle.busy_s - busy_before)

    def _receive(self, exchange: _Exchange) -> tuple[TensorMap, TensorMap, float]:
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
        loss = stage.loss(j)
        if loss is not None:
            self.finite = self.finite and math.isfinite(loss)
            self.losses.append(LossPart(j, part.start, _plain(loss), scale))
        if self.look and not self.trouble:
            self._look_at(j, "forward", (*feeds.values(), *received.values()), self.outputs[j].values(), loss)

    def _backward(self, j: int) -> None:
        with self.owner.throttle:
            self.backs[j] = self.owner.stage.backward(j, self.gradients.pop(j, {}))
        if self.look and not self.trouble:
            results = [*self.backs[j].values(), *self.owner.stage.gradients().values()]
            self._look_at(j, "backward", (), [t for t in results if t is not None], None)

    def _look_at(
        self, j: int, what: str, given: Sequence[torch.Tensor], made: object, loss: float | None
    ) -> None:
        """Remembers where a non-finite value first appeared: in what was given, or in what was made of it."""
        where = f"stage {self.owner.index} ({what}, micro-batch {j})"
        if any(not _finite(t) for t in given):
            self.trouble = "" if self.owner.index else f"non-finite input data reached {where}"
            return
        bad_loss = loss is not None and not math.isfinite(loss)
        if bad_loss or any(not _finite(t) for t in made):  # type: ignore[attr-defined]
            self.trouble = f"non-finite values first appeared in {where}"

    def _reduce(self) -> None:
        owner = self.owner
        reduce_gradients(owner.stage, owner.sums, owner.me, owner.link, self.begin.round, owner.timeout_s)
        share_statistics(owner.stage, owner.group, owner.me, owner.link, self.begin.round, owner.timeout_s)

    def _ready(self, busy_s: float) -> Ready:
        with self.owner.throttle:
            norms = self.owner.stage.squared_norms(self.owner.answers_for)
        finite = self.finite and all(math.isfinite(n) for n in norms.values())
        lonely = [value for value, rows in self.owner.stage.statistics.values() if rows == 1]
        if not all(_finite(value) for value in lonely):
            finite, self.trouble = False, "BatchNorm met a micro-batch of one sample, whose variance is not defined,"
        return Ready(
            round=self.begin.round, losses=tuple(self.losses), squared_norms={k: _plain(v) for k, v in norms.items()},
            finite=finite, trouble=self.trouble, busy_s=busy_s,
        )  # fmt: skip


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _plain(number: float) -> float:
    """A number JSON can say; the flag `finite` tells the rest."""
    return number if math.isfinite(number) else 0.0


class _Exchange:
    """What one device gives and gets for its rows of one micro-batch."""

    def __init__(self, owner: Executor, mode: str, round: int, micro_batch: int, size: int, part: Part) -> None:
        self.owner, self.mode, self.round, self.micro_batch = owner, mode, round, micro_batch
        self.size, self.part = size, part
        self.program = owner.stage.train if mode == "train" else owner.stage.eval
        self.edges = owner.layout.edges[mode]

    def _parts(self, stage: int) -> tuple[Part, ...]:
        return rows(self.owner.plan.stages[stage], self.micro_batch, self.size, self.owner.plan)

    def feed_tensors(self) -> list[torch.Tensor]:
        """This device's rows of the inputs and labels its stage uses (and at the last stage of the loss weights)."""
        if not self.owner.layout.is_fed(self.mode, self.owner.index):
            return []
        tag = Tag(f"feed-{self.mode}", self.round, self.micro_batch, self.owner.index, self.part.start)
        message = self.owner.link.receive(COORDINATOR, tag, self.owner.timeout_s)
        return [t for t in unpack(message, self.owner.stage.device) if t is not None]

    def feeds(self, values: Sequence[int]) -> TensorMap:
        return dict(zip(values, self.feed_tensors(), strict=False))

    def activations(self) -> TensorMap:
        """Values made in earlier stages, for this device's rows."""
        received: TensorMap = {}
        for source in self.owner.layout.sources(self.mode, self.owner.index):
            values = self.edges[source, self.owner.index]
            received.update(self._collect(f"act-{self.mode}", source, source, self.owner.index, values))
        return received

    def gradients(self) -> dict[int, torch.Tensor | None]:
        """Gradients of the values sent, added over the stages that used them, last stage first, as autograd does."""
        total: dict[int, torch.Tensor | None] = {}
        for target in reversed(self.owner.layout.targets(self.mode, self.owner.index)):
            values = self.owner.layout.gradient_values(self.owner.index, target)
            if not values:
                continue
            arrived = self._collect("gradient", target, self.owner.index, target, values)
            for value in values:
                gradient, sum_so_far = arrived.get(value), total.get(value)
                total[value] = gradient if sum_so_far is None or gradient is None else sum_so_far + gradient
                if gradient is None and sum_so_far is not None:
                    total[value] = sum_so_far
        return total

    def _collect(self, kind: str, stage: int, source: int, target: int, values: Sequence[int]) -> TensorMap:
        """The rows at hand of some values, from whoever of a stage holds them."""
        pieces: list[tuple[int, list[torch.Tensor | None]]] = []
        for route in routes(self._parts(stage), self._parts(self.owner.index)):
            if route.target == self.owner.me:
                tag = Tag(kind, self.round, self.micro_batch, source * 1000 + target, route.start)
                message = self.owner.link.receive(route.source, tag, self.owner.timeout_s)
                pieces.append((route.stop - route.start, unpack(message, self.owner.stage.device)))
        result: TensorMap = {}
        for i, value in enumerate(values):
            tensors = [(count, tensors[i]) for count, tensors in pieces]
            joined = self._join(value, tensors)
            if joined is not None:
                result[value] = joined
        return result

    def _join(self, value: int, parts: Sequence[tuple[int, torch.Tensor | None]]) -> torch.Tensor | None:
        known = self.program.values[value]
        present = [t for _, t in parts if t is not None]
        if not present:
            return None
        if len(parts) == 1:
            return present[0]
        axis = known.batch_axis
        assert axis is not None
        shape = list(present[0].shape)
        filled = []
        for count, tensor in parts:
            shape[axis] = count * known.batch_factor
            filled.append(present[0].new_zeros(shape) if tensor is None else tensor)
        return torch.cat(filled, dim=axis)

    def send_outputs(self, values: TensorMap) -> None:
        """Sends every later stage its rows of what it needs."""
        for target in self.owner.layout.targets(self.mode, self.owner.index):
            wanted = self.edges[self.owner.index, target]
            self._deliver(f"act-{self.mode}", target, self.owner.index, target, [(v, values[v]) for v in wanted])

    def send_gradients(self, gradients: Mapping[int, torch.Tensor | None]) -> None:
        """Sends every earlier stage the gradients of what it gave."""
        for source in self.owner.layout.sources(self.mode, self.owner.index):
            values = self.owner.layout.gradient_values(source, self.owner.index)
            if values:
                self._deliver("gradient", source, source, self.owner.index, [(v, gradients.get(v)) for v in values])

    def _deliver(
        self, kind: str, stage: int, source: int, target: int, tensors: Sequence[tuple[int, torch.Tensor | None]]
    ) -> None:
        for route in routes(self._parts(self.owner.index), self._parts(stage)):
            if route.source == self.owner.me:
                tag = Tag(kind, self.round, self.micro_batch, source * 1000 + target, route.start)
                start, count = route.start - self.part.start, route.stop - route.start
                rows_of = [self._narrow(v, t, start, count) for v, t in tensors]
                self.owner.link.send(route.target, tag, pack(rows_of), self.owner.timeout_s)

    def _narrow(self, value: int, tensor: torch.Tensor | None, start: int, count: int) -> torch.Tensor | None:
        if tensor is None or count == self.part.stop - self.part.start:
            return tensor
        known = self.program.values[value]
        assert known.batch_axis is not None
        return tensor.narrow(known.batch_axis, start * known.batch_factor, count * known.batch_factor)

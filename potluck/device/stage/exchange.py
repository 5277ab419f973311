"""What one device gives and gets for its rows of one micro-batch, and with whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from potluck.compute.our_operators import torch_constant
from potluck.compute.runner import StageRunner
from potluck.errors import InputError
from potluck.plan.routes import Part, Route, routes, rows
from potluck.program.layout import PlanLayout
from potluck.program.program import Tensor, shape_of
from potluck.tensors.coded import Like, pack_coded, unpack_coded
from potluck.tensors.parcels import unpack
from potluck.types import COORDINATOR, Plan
from potluck.wire.link import Link, Tag

TensorMap = dict[int, torch.Tensor]


@dataclass(frozen=True)
class Site:
    """One device's place in a plan."""

    me: str
    index: int  # of its stage
    plan: Plan
    layout: PlanLayout
    stage: StageRunner
    link: Link
    timeout_s: float

    @property
    def group(self) -> tuple[str, ...]:
        return tuple(m.device for m in self.plan.stages[self.index].group)

    def part(self, micro_batch: int, size: int) -> Part | None:
        """This device's rows of a micro-batch, or None: a short one may leave a member of a group without."""
        parts = rows(self.plan.stages[self.index], micro_batch, size, self.plan)
        return next((p for p in parts if p.device == self.me), None)


class Exchange:
    """What one device gives and gets for its rows of one micro-batch."""

    def __init__(self, site: Site, mode: str, round: int, micro_batch: int, size: int, part: Part) -> None:
        self.site, self.mode, self.round, self.micro_batch = site, mode, round, micro_batch
        self.size, self.part = size, part
        self.program = site.stage.train if mode == "train" else site.stage.eval
        self.edges = site.layout.edges[mode]

    def _parts(self, stage: int) -> tuple[Part, ...]:
        return rows(self.site.plan.stages[stage], self.micro_batch, self.size, self.site.plan)

    def feed_tensors(self) -> list[torch.Tensor]:
        """This device's rows of the inputs and labels its stage uses (and at the last stage of the loss weights)."""
        if not self.site.layout.is_fed(self.mode, self.site.index):
            return []
        message = self.site.link.receive(COORDINATOR, self._feed_tag(), self.site.timeout_s)
        return [t for t in unpack(message, self.site.stage.device) if t is not None]

    def _feed_tag(self) -> Tag:
        return Tag(f"feed-{self.mode}", self.round, self.micro_batch, self.site.index, self.part.start)

    def feeds(self, values: Sequence[int]) -> TensorMap:
        return dict(zip(values, self.feed_tensors(), strict=False))

    def activations(self) -> TensorMap:
        """Values made in earlier stages, for this device's rows."""
        received: TensorMap = {}
        for source in self.site.layout.sources(self.mode, self.site.index):
            values = self.edges[source, self.site.index]
            received.update(self._collect(f"act-{self.mode}", source, source, self.site.index, values))
        return received

    def inputs_are_here(self) -> bool:
        """Whether the feeds and activations of this micro-batch can be had without waiting."""
        layout, me = self.site.layout, self.site.index
        feed = [(COORDINATOR, self._feed_tag())] if layout.is_fed(self.mode, me) else []
        sources = layout.sources(self.mode, me)
        ways = (way for source in sources for way in self._ways(f"act-{self.mode}", source, source, me))
        awaited = (*feed, *((route.source, tag) for route, tag in ways))
        return all(self.site.link.arrived(source, tag) for source, tag in awaited)

    def gradients_are_here(self) -> bool:
        """Whether the gradients of this micro-batch can be had without waiting."""
        me = self.site.index
        laters = (later for mine, later in self.site.layout.gradients if mine == me)
        ways = (way for later in laters for way in self._ways("gradient", later, me, later))
        return all(self.site.link.arrived(route.source, tag) for route, tag in ways)

    def gradients(self) -> TensorMap:
        """Gradients that later stages hand back: of what this stage made, and of what it received and they use too."""
        arrived: TensorMap = {}
        for (mine, later), values in self.site.layout.gradients.items():
            if mine == self.site.index:
                arrived.update(self._collect("gradient", later, mine, later, values))
        return arrived

    def _collect(self, kind: str, stage: int, source: int, target: int, values: Sequence[int]) -> TensorMap:
        """The rows at hand of some values, from whoever of a stage holds them."""
        pieces: list[tuple[int, list[torch.Tensor | None]]] = []
        codec = self.site.layout.codecs[source]
        for route, tag in self._ways(kind, stage, source, target):
            message = self.site.link.receive(route.source, tag, self.site.timeout_s)
            count = route.stop - route.start
            likes = [self._like(value, count) for value in values]
            pieces.append((count, unpack_coded(message, codec, likes, self.site.stage.device)))
        result: TensorMap = {}
        for i, value in enumerate(values):
            tensors = [(count, tensors[i]) for count, tensors in pieces]
            joined = self._join(value, tensors)
            if joined is not None:
                result[value] = joined
        return result

    def _like(self, value: int, count: int) -> Like:
        known = self.program.values[value]
        return Like(shape_of(known, count), torch_constant("dtype", known.dtype))

    def _ways(self, kind: str, stage: int, source: int, target: int) -> Iterator[tuple[Route, Tag]]:
        """How rows come here from whoever of a stage holds them."""
        for route in routes(self._parts(stage), self._parts(self.site.index)):
            if route.target == self.site.me:
                yield route, Tag(kind, self.round, self.micro_batch, source * 1000 + target, route.start)

    def _join(self, value: int, parts: Sequence[tuple[int, torch.Tensor | None]]) -> torch.Tensor | None:
        known = self.program.values[value]
        present = [t for _, t in parts if t is not None]
        if not present:
            return None
        if len(parts) == 1:
            return present[0]
        axis = _axis(known)
        shape = list(present[0].shape)
        filled = []
        for count, tensor in parts:
            shape[axis] = count * known.batch_factor
            filled.append(present[0].new_zeros(shape) if tensor is None else tensor)
        return torch.cat(filled, dim=axis)

    def send_outputs(self, values: TensorMap) -> None:
        """Sends every later stage its rows of what it needs."""
        for target in self.site.layout.targets(self.mode, self.site.index):
            wanted = self.edges[self.site.index, target]
            self._deliver(f"act-{self.mode}", target, self.site.index, target, [(v, values[v]) for v in wanted])

    def send_gradients(self, gradients: Mapping[int, torch.Tensor | None]) -> None:
        """Hands every earlier stage the gradients it is waiting for."""
        for (earlier, mine), values in self.site.layout.gradients.items():
            if mine == self.site.index:
                self._deliver("gradient", earlier, earlier, mine, [(v, gradients.get(v)) for v in values])

    def _deliver(
        self, kind: str, stage: int, source: int, target: int, tensors: Sequence[tuple[int, torch.Tensor | None]]
    ) -> None:
        for route in routes(self._parts(self.site.index), self._parts(stage)):
            if route.source == self.site.me:
                tag = Tag(kind, self.round, self.micro_batch, source * 1000 + target, route.start)
                start, count = route.start - self.part.start, route.stop - route.start
                rows_of = [self._narrow(v, t, start, count) for v, t in tensors]
                message = pack_coded(rows_of, self.site.layout.codecs[source])
                self.site.link.send(route.target, tag, message, self.site.timeout_s)

    def _narrow(self, value: int, tensor: torch.Tensor | None, start: int, count: int) -> torch.Tensor | None:
        if tensor is None or count == self.part.stop - self.part.start:
            return tensor
        known = self.program.values[value]
        return tensor.narrow(_axis(known), start * known.batch_factor, count * known.batch_factor)


def _axis(known: Tensor) -> int:
    if known.batch_axis is None:
        raise InputError("program: a value without a batch axis crosses a cut; the program or the plan is damaged")
    return known.batch_axis

"""Every message of a round, with its size: what the devices of a plan say to each other, from facts alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from potluck.compress.codec_registry import codec_named, seconds_of
from potluck.plan.cost.buckets import Bucket, buckets
from potluck.plan.cost.edges import Edges
from potluck.plan.cost.summing import parts_of
from potluck.plan.cost.tables import Tables
from potluck.plan.routes import Route, routes, rows
from potluck.plan.schedule.action_list import late_weights
from potluck.plan.schedule.holders import stage_of
from potluck.types import COORDINATOR, RAW, ModelFacts, Plan


@dataclass(frozen=True)
class PlannedMessage:
    """A message between two devices."""

    kind: str
    source: str
    target: str
    size_bytes: int
    transfer_s: float
    latency_s: float
    codec: str = RAW
    plain_bytes: int = 0  # what the codec makes it of


class Messages:
    """Answers for one plan. Every micro-batch is taken to be full."""

    def __init__(self, plan: Plan, facts: ModelFacts, tables: Tables) -> None:
        self._plan, self._facts, self._tables = plan, facts, tables
        self._edges = Edges(facts)
        blocks = [s.blocks for s in plan.stages]
        self._out, self._back = self._edges.between(blocks, [s.codec for s in plan.stages])
        self._plain = self._edges.between(blocks)
        self._home = {d: stage_of(plan, d) for d in plan.devices}
        self._known: dict[tuple[str, str, int], tuple[PlannedMessage, ...]] = {}
        self._summing: dict[tuple[str, str], tuple[list[PlannedMessage], list[PlannedMessage]]] = {}
        self._compute: dict[tuple[str, str], float] = {}
        self._buckets: dict[int, list[Bucket]] = {}
        self._ways: dict[tuple[tuple[int, int], int, bool], tuple[Route, ...]] = {}
        self._ties = self._tied()
        self._touching: dict[tuple[bool, int], dict[int, list[tuple[tuple[int, int], int]]]] = {}
        for forward, mine in itertools.product((False, True), (0, 1)):
            by_stage = self._touching[forward, mine] = {}
            for pair, row_bytes in (self._out if forward else self._back).items():
                by_stage.setdefault(pair[mine], []).append((pair, row_bytes))

    def compute_s(self, device: str, kind: str) -> float:
        """Seconds of one forward or backward of the device's rows, or of weight gradients that were put off."""
        known = self._compute.get((device, kind))
        if known is None:
            known = self._compute[device, kind] = self._compute_s(device, kind)
        return known

    def _compute_s(self, device: str, kind: str) -> float:
        stage = self._plan.stages[self._home[device]]
        share = next(m.share for m in stage.group if m.device == device)
        by_samples = stage.sharing == "samples" and len(stage.group) > 1
        count = share if by_samples else self._plan.micro_batch_size
        tables, (start, stop) = self._tables.devices[device], stage.blocks
        if kind == "weights":
            weights = tables.late_weights(count)
            return float(weights[stop] - weights[start])
        forward, backward = (
            tables.forward(count),
            tables.late_back(count) if self.late(device) else tables.backward(count),
        )
        half_call_s = tables.profile.call_s / 2
        once = float(forward[stop] - forward[start]) + half_call_s
        if kind == "forward":
            return once
        return float(backward[stop] - backward[start]) + half_call_s + (once if stage.recompute else 0.0)

    def late(self, device: str) -> bool:
        """Whether the device puts weight gradients off: an earlier stage waits for what its backward gives."""
        index = self._home[device]
        return late_weights(self._plan, index) > 0 and any(later == index for _, later in self._back)

    def handling_s(self, device: str, parcels: Iterable[PlannedMessage]) -> float:
        """Compute time that sending or receiving these costs the device."""
        profile = self._tables.devices[device].profile
        rate = profile.copy_bytes_s
        return sum(
            profile.message_s
            + (p.size_bytes / rate if rate else 0.0)
            + (p.plain_bytes * seconds_of(codec_named(p.codec), profile) if p.codec != RAW else 0.0)
            for p in parcels
        )

    def is_fed(self, device: str) -> bool:
        """Whether the coordinator sends this device something for its micro-batches."""
        index = self._home[device]
        return index == len(self._plan.stages) - 1 or self._edges.fed(self._plan.stages[index].blocks) > 0

    def feeds(self) -> list[tuple[int, PlannedMessage]]:
        """What the coordinator sends for a round, in order, with the micro-batch it belongs to."""
        plan, found = self._plan, []
        for j in range(plan.micro_batches):
            for stage in plan.stages:
                size = self._edges.fed(stage.blocks)
                for part in rows(stage, j, plan.micro_batch_size, plan):
                    if self.is_fed(part.device):
                        found.append(
                            (j, self._parcel("feed", COORDINATOR, part.device, size * (part.stop - part.start)))
                        )
        return found

    def leaving(self, device: str, kind: str, j: int) -> tuple[PlannedMessage, ...]:
        """What the device sends after a forward ("send_outputs") or a backward ("send_gradients")."""
        return self._kept(device, kind, j, mine=0 if kind == "send_outputs" else 1, outwards=True)

    def arriving(self, device: str, kind: str, j: int) -> tuple[PlannedMessage, ...]:
        """What must be there before a forward ("receive_inputs") or a backward ("receive_gradients")."""
        return self._kept(device, kind, j, mine=1 if kind == "receive_inputs" else 0, outwards=False)

    def buckets(self, device: str) -> list[Bucket]:
        """The buckets in which the device's group sums its gradients."""
        index = self._home[device]
        if index not in self._buckets:
            stage = self._plan.stages[index]
            tables = self._tables.devices[stage.group[0].device]
            passing = tables.backward(self._plan.micro_batch_size)
            seconds = [float(passing[b + 1] - passing[b]) for b in range(*stage.blocks)]
            self._buckets[index] = buckets(stage, self._facts.blocks[slice(*stage.blocks)], seconds)
        return self._buckets[index]

    def group(self, device: str) -> tuple[str, ...]:
        """The device and those it shares its stage with."""
        return tuple(m.device for m in self._plan.stages[self._home[device]].group)

    def bucket(self, phase: str, bucket: Bucket, source: str, target: str) -> PlannedMessage:
        """One device's part of a bucket, or its sums."""
        return self._parcel(phase, source, target, bucket.size_bytes)

    def tied(self, device: str, phase: str) -> tuple[list[PlannedMessage], list[PlannedMessage]]:
        """What the device sends and gets while gradients of weights tied across stages are summed."""
        out: list[PlannedMessage] = []
        back: list[PlannedMessage] = []
        for (adder, member), size in self._ties.items():
            if device in (adder, member):
                leaves = (device == member) == (phase == "reduce")
                source, target = (member, adder) if phase == "reduce" else (adder, member)
                (out if leaves else back).append(self._parcel(phase, source, target, size))
        return out, back

    def summing(self, device: str, phase: str) -> tuple[list[PlannedMessage], list[PlannedMessage]]:
        """All that the device sends and gets while gradients are summed: its parts, or the sums."""
        known = self._summing.get((device, phase))
        if known is None:
            known = self._summing[device, phase] = self._summed(device, phase)
        return known

    def _summed(self, device: str, phase: str) -> tuple[list[PlannedMessage], list[PlannedMessage]]:
        out, back = [], []
        for peer, (theirs, mine) in self._shared_bytes(device).items():
            sent, got = (theirs, mine) if phase == "reduce" else (mine, theirs)
            if sent:
                out.append(self._parcel(phase, device, peer, sent))
            if got:
                back.append(self._parcel(phase, peer, device, got))
        return out, back

    def _shared_bytes(self, device: str) -> dict[str, tuple[int, int]]:
        """Peer → bytes of shared gradients that the peer adds up, and that this device adds up."""
        stage = self._plan.stages[self._home[device]]
        found: dict[str, tuple[int, int]] = {}
        size = sum(b.trainable_bytes for b in self._facts.blocks[slice(*stage.blocks)])
        parts = parts_of(stage.group)
        for peer in (m.device for m in stage.group if m.device != device):
            found[peer] = (int(size * parts[peer]), int(size * parts[device]))
        for pair, tied in self._ties.items():
            if device in pair:
                peer = pair[1 - pair.index(device)]
                theirs, mine = found.get(peer, (0, 0))
                adder = pair[0]
                found[peer] = (theirs + (tied if adder == peer else 0), mine + (tied if adder == device else 0))
        return found

    def _tied(self) -> dict[tuple[str, str], int]:
        """Devices of different stages that share a weight: the first one of its owner's group adds up."""
        home = [i for i, s in enumerate(self._plan.stages) for _ in range(*s.blocks)]
        sizes: dict[tuple[str, str], int] = {}
        for _, users in self._facts.tied:
            adder = self._plan.stages[home[users[0]]].group[0].device
            for index in {home[u] for u in users} - {home[users[0]]}:
                for member in self._plan.stages[index].group:
                    pair = (adder, member.device)
                    sizes[pair] = max(sizes.get(pair, 0), self._facts.blocks[users[0]].trainable_bytes)
        return sizes

    def _kept(self, device: str, kind: str, j: int, *, mine: int, outwards: bool) -> tuple[PlannedMessage, ...]:
        key = (device, kind, j)
        found = self._known.get(key)
        if found is None:
            forward = kind in ("send_outputs", "receive_inputs")
            found = self._known[key] = tuple(self._routed(device, j, forward, mine, outwards))
        return found

    def _routed(self, device: str, j: int, forward: bool, mine: int, outwards: bool) -> Iterable[PlannedMessage]:
        for pair, row_bytes in self._touching[forward, mine].get(self._home[device], ()):
            for route in self._routes(pair, j, forward):
                if device == (route.source if outwards else route.target):
                    kind, rows = f"{'out' if forward else 'back'} {pair}", route.stop - route.start
                    plain = rows * self._plain[not forward][pair]
                    codec = self._plan.stages[pair[0]].codec
                    yield self._parcel(kind, route.source, route.target, rows * row_bytes, codec, plain)

    def _routes(self, pair: tuple[int, int], j: int, forward: bool) -> tuple[Route, ...]:
        key = (pair, j, forward)
        known = self._ways.get(key)
        if known is None:
            plan = self._plan
            earlier, later = (rows(plan.stages[p], j, plan.micro_batch_size, plan) for p in pair)
            known = self._ways[key] = routes(earlier, later) if forward else routes(later, earlier)
        return known

    def _parcel(
        self, kind: str, source: str, target: str, size: int, codec: str = RAW, plain: int = 0
    ) -> PlannedMessage:
        return PlannedMessage(
            kind=kind,
            source=source,
            target=target,
            size_bytes=size,
            transfer_s=self._tables.transfer_s(source, target, size),
            latency_s=self._tables.latency_s(source, target),
            codec=codec,
            plain_bytes=plain,
        )

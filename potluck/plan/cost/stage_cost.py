"""A stage and its group as the cost model sees them: how long it takes, what it sends, what it must remember."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from typing import NamedTuple

from msgspec.structs import replace

from potluck.compress.codec_registry import codec_named, seconds_of
from potluck.plan.cost.edges import Edges
from potluck.plan.cost.memory import SpanBytes, stage_bytes
from potluck.plan.cost.shares import allocate
from potluck.plan.cost.summing import Summing, adding_weights, parts_of, summing_s
from potluck.plan.cost.tables import DeviceTables, Tables
from potluck.plan.schedule.holders import turns
from potluck.plan.schedule.schedules import Schedule
from potluck.plan.schedule.under_way import most_in_flight
from potluck.types import COORDINATOR, RAW, Member, ModelFacts, Sharing, Stage

_PLAIN = (RAW, RAW)  # the codecs at both ends of a stage


class Bytes(NamedTuple):
    """Memory of one member, whatever the depth."""

    fixed: int
    kept: int  # for each micro-batch in flight
    waiting: int  # for each that waits on a link
    floor: int  # between rounds, while a checkpoint is on its way
    version: int  # for each version of the weights but one

    def need(self, flying: int, waiting: int, versions: int) -> int:
        """Most bytes with so many micro-batches in flight and waiting, and so many versions of the weights."""
        held = waiting * self.waiting + (versions - 1) * self.version
        return max(self.fixed + flying * self.kept, self.floor) + held


class _Role(NamedTuple):
    """What of its group a member's memory depends on."""

    members: int
    adds: float  # the part of the gradients that it adds up


@dataclass(frozen=True)
class Station:
    """One stage with its shares settled."""

    stage: Stage  # its depth is the one it was made for
    crew: int  # the same for the same members with the same shares
    forward_s: tuple[float, ...]  # of a micro-batch, by member; sharing by samples, of the slowest
    backward_s: tuple[float, ...]
    turns: tuple[int, ...]  # which member has each micro-batch of a round
    reduce_s: float
    update_s: float
    feed_s: float  # the coordinator's line is busy that long for one round
    fed_after_s: float  # until the first micro-batch's samples are there
    bytes: tuple[Bytes, ...]  # by member

    @property
    def busy_s(self) -> float:
        """Seconds of the busiest member for one round, divided by the micro-batches."""
        steps = [f + b for f, b in zip(self.forward_s, self.backward_s, strict=True)]
        return max(self.turns.count(place) * step for place, step in enumerate(steps)) / len(self.turns)

    @property
    def passage_s(self) -> float:
        """Seconds of one micro-batch, forward and backward, in the mean."""
        steps = [f + b for f, b in zip(self.forward_s, self.backward_s, strict=True)]
        return sum(steps[place] for place in self.turns) / len(self.turns)


class Stations:
    """Makes stations for one model, one profile and one micro-batch size; every answer is kept."""

    def __init__(
        self, facts: ModelFacts, tables: Tables, micro_batch_size: int, micro_batches: int, schedule: Schedule
    ) -> None:
        self.facts, self.tables, self.schedule = facts, tables, schedule
        self.rows, self.micro_batches = micro_batch_size, micro_batches
        self.edges = Edges(facts)
        self.cuts = self._cuts_by(RAW)
        self._cuts = {RAW: self.cuts}
        self._crews: dict[tuple[tuple[Member, ...], Sharing], int] = {}
        self._spans: dict[tuple[int, int], SpanBytes] = {}
        self._per_megabyte: dict[tuple[tuple[str, int], ...], list[tuple[Summing, Summing]]] = {}
        self._unsettled: dict[tuple[str, ...], tuple[Member, ...]] = {}
        self._sizes: dict[tuple[str, tuple[int, int], int, _Role, bool], Bytes] = {}
        self._known: dict[tuple[tuple[int, int], tuple[str, ...], int, bool], Station | None] = {}
        self._fitting: dict[tuple[int, tuple[int, int], bool, int, int], bool] = {}

    def _cuts_by(self, codec: str) -> list[tuple[int, int]]:
        """For a cut before each block, and behind the last: bytes per row that cross it forward, and back."""
        return [*self.edges.at_cuts(codec), (0, 0)]

    def best(
        self, blocks: tuple[int, int], devices: tuple[str, ...], depth: int, recompute: bool = False
    ) -> Station | None:
        """The fastest way for these devices to share these blocks, or None if they cannot or it does not fit."""
        key = (blocks, devices, depth, recompute)
        if key not in self._known:
            found = [s for kind in self._kinds(blocks, devices) if (s := self._shared(*key, kind)) is not None]
            self._known[key] = min(found, key=self._slowness, default=None)
        return self._known[key]

    def _slowness(self, station: Station) -> float:
        return self.micro_batches * station.busy_s + station.passage_s

    def _kinds(self, blocks: tuple[int, int], devices: tuple[str, ...]) -> tuple[Sharing, ...]:
        held = self.facts.blocks[slice(*blocks)]
        if len(devices) == 1:
            return ("turns",)
        if any(b.exclusive for b in held):
            return ()
        if any(b.coupled for b in held):
            return ("turns",)
        return ("turns", "samples")

    def _shared(
        self, blocks: tuple[int, int], devices: tuple[str, ...], depth: int, recompute: bool, kind: Sharing
    ) -> Station | None:
        members = [self.tables.devices[d] for d in devices]
        crew = self.crew(devices)
        once_s = self._once_s(blocks, crew)
        count, parts = len(crew), parts_of(crew).values()
        if kind == "turns":
            per_turn = [self._step(m, blocks, self.rows, recompute) for m in members]
            caps = [
                self._most_turns(m, blocks, _Role(count, p), depth, recompute)
                for m, p in zip(members, parts, strict=True)
            ]
            shares = allocate(lambda d, n: once_s[d] + n * sum(per_turn[d]), self.micro_batches, caps, 1)
        else:
            caps = [
                self._most_rows(m, blocks, _Role(count, p), depth, recompute)
                for m, p in zip(members, parts, strict=True)
            ]
            each_s = [s / self.micro_batches for s in once_s]
            shares = allocate(
                lambda d, n: each_s[d] + sum(self._step(members[d], blocks, n, recompute)), self.rows, caps, 2
            )
        if shares is None:
            return None
        group = tuple(replace(m, share=s) for m, s in zip(crew, shares, strict=True))
        stage = Stage(blocks=blocks, group=group, sharing=kind, depth=depth, recompute=recompute)
        station = self.of(stage)
        return station if self.fits(station, depth, 2) else None

    def crew(self, devices: Sequence[str]) -> tuple[Member, ...]:
        """These devices as a group whose shares are not settled yet; how much each adds up is."""
        key = tuple(devices)
        if key not in self._unsettled:
            weights = adding_weights(self.tables, devices)
            members = (Member(device=d, share=1, sums=w) for d, w in zip(devices, weights, strict=True))
            self._unsettled[key] = tuple(members)
        return self._unsettled[key]

    def _once_s(self, blocks: tuple[int, int], group: Sequence[Member]) -> list[float]:
        """What each member does once a round while others may still compute: its update, and handling gradients."""
        start, stop = blocks
        updates = [self.tables.devices[m.device].update for m in group]
        return [
            float(update[stop] - update[start]) + summing.handling_s
            for update, summing in zip(updates, self._summing(blocks, group), strict=True)
        ]

    def _summing(self, blocks: tuple[int, int], group: Sequence[Member]) -> list[Summing]:
        size = sum(b.trainable_bytes for b in self.facts.blocks[slice(*blocks)])
        if len(group) == 1 or not size:
            return [Summing(0.0, 0.0, 0.0)] * len(group)
        key = tuple((m.device, m.sums) for m in group)
        if key not in self._per_megabyte:
            bases, one = (summing_s(self.tables, group, size) for size in (0.0, 1e6))
            self._per_megabyte[key] = list(zip(bases, one, strict=True))
        return [one.scaled(base, size / 1e6) for base, one in self._per_megabyte[key]]

    def of(self, stage: Stage, before: str = RAW) -> Station:
        """The station of a stage whose shares are given; `before` is the codec of the stage before it."""
        members = [self.tables.devices[m.device] for m in stage.group]
        by_turns = stage.sharing == "turns" or len(members) == 1
        rows = [self.rows if by_turns else m.share for m in stage.group]
        codecs = before, stage.codec
        for codec in codecs:
            if codec not in self._cuts:
                self._cuts[codec] = self._cuts_by(codec)
        steps = [self._step(t, stage.blocks, r, stage.recompute, codecs) for t, r in zip(members, rows, strict=True)]
        times = [m.share if by_turns else self.micro_batches for m in stage.group]
        busy_s = [n * (f + b) for n, (f, b) in zip(times, steps, strict=True)]
        if not by_turns:
            steps = [(max(f for f, _ in steps), max(b for _, b in steps))]
        update_s = max(float(t.update[stage.blocks[1]] - t.update[stage.blocks[0]]) for t in members)
        parts = parts_of(stage.group).values()
        sizes = [
            self._bytes(t, stage.blocks, r, _Role(len(members), part), stage.recompute)
            for t, r, part in zip(members, rows, parts, strict=True)
        ]
        return Station(
            stage=stage,
            crew=self._crews.setdefault((stage.group, stage.sharing), len(self._crews)),
            forward_s=tuple(f for f, _ in steps),
            backward_s=tuple(b for _, b in steps),
            turns=self._turns(stage) if by_turns and len(members) > 1 else (0,) * self.micro_batches,
            reduce_s=self._reduce_s(stage, busy_s, update_s, [b for _, b in steps]),
            update_s=update_s,
            feed_s=self._feed_s(stage, rows),
            fed_after_s=self._fed_after_s(stage, rows),
            bytes=tuple(sizes),
        )

    def fits(self, station: Station, depth: int, waiting: int) -> bool:
        """Whether every member has the memory for this depth and so many micro-batches waiting on its links."""
        stage = station.stage
        key = (station.crew, stage.blocks, stage.recompute, depth, waiting)
        found = self._fitting.get(key)
        if found is None:
            limits = [self.tables.devices[member.device].memory_bytes for member in stage.group]
            found = self._fitting[key] = all(
                not limit or self.need_bytes(station, place, depth, waiting) <= limit
                for place, limit in enumerate(limits)
            )
        return found

    def need_bytes(self, station: Station, place: int, depth: int, waiting: int) -> int:
        stage = station.stage
        shares = tuple(m.share for m in stage.group)
        flying = _in_flight(self.schedule, stage.sharing, shares, place, depth, self.micro_batches)
        return station.bytes[place].need(flying, waiting, self.schedule.versions(depth))

    def _step(
        self, member: DeviceTables, blocks: tuple[int, int], rows: int, recompute: bool,
        codecs: tuple[str, str] = _PLAIN,
    ) -> tuple[float, float]:  # fmt: skip
        """Seconds of one forward and of one backward, with what sending and receiving cost the compute thread."""
        start, stop = blocks
        forward, backward = member.forward(rows), member.backward(rows)
        f, b = float(forward[stop] - forward[start]), float(backward[stop] - backward[start])
        before, own = codecs
        (in_out, in_back), (out_out, out_back) = self._cuts[before][start], self._cuts[own][stop]
        message_s, copy = member.profile.message_s, member.profile.copy_bytes_s
        messages = (start > 0) + (stop < len(self.facts.blocks))
        again = f + member.profile.call_s / 2 if recompute else 0.0
        half_call_s = member.profile.call_s / 2
        f += messages * message_s + half_call_s
        b += ((in_back > 0) + (out_back > 0)) * message_s + half_call_s
        if copy is not None:
            f += rows * (in_out + out_out) / copy
            b += rows * (in_back + out_back) / copy
        if codecs != _PLAIN:
            for cut, codec in zip(blocks, codecs, strict=True):
                each_s = seconds_of(codec_named(codec), member.profile)
                f += rows * self.cuts[cut][0] * each_s
                b += rows * self.cuts[cut][1] * each_s
        return f, b + again

    def _turns(self, stage: Stage) -> tuple[int, ...]:
        shares = tuple(m.share for m in stage.group)
        return _turn_order(shares, self.micro_batches)

    def _reduce_s(self, stage: Stage, busy_s: Sequence[float], update_s: float, backward_s: Sequence[float]) -> float:
        """From the end of the last backward until all have the sums.

        In the first stage most of it happens during that backward; later stages send gradients back first. Who has less
        to compute than others is ready to handle it earlier.
        """
        if len(stage.group) == 1:
            return 0.0
        done_s = [b + o for b, o in zip(busy_s, self._once_s(stage.blocks, stage.group), strict=True)]
        more_s = max(done_s) - max(busy_s) - update_s
        summing = self._summing(stage.blocks, stage.group)
        # By samples, the slowest one's backward is everybody's.
        hides_s = cycle([0.0] if stage.blocks[0] else backward_s)
        left_s = (s.handling_s + s.left_s(h) for s, h in zip(summing, hides_s, strict=False))
        return max(0.0, more_s) + max(left_s)

    def _feed_s(self, stage: Stage, rows: Sequence[int]) -> float:
        size = self.edges.fed(stage.blocks)
        by_turns = stage.sharing == "turns"
        times = [m.share if by_turns else self.micro_batches for m in stage.group]
        return sum(
            n * self.tables.leaving_s(COORDINATOR, m.device, size * r)
            for m, n, r in zip(stage.group, times, rows, strict=True)
        )

    def _fed_after_s(self, stage: Stage, rows: Sequence[int]) -> float:
        size = self.edges.fed(stage.blocks)
        if not size and stage.blocks[1] < len(self.facts.blocks):
            return 0.0
        return max(
            self.tables.latency_s(COORDINATOR, m.device) + self.tables.transfer_s(COORDINATOR, m.device, size * r)
            for m, r in zip(stage.group, rows, strict=True)
        )

    def _bytes(self, member: DeviceTables, blocks: tuple[int, int], rows: int, role: _Role, recompute: bool) -> Bytes:
        key = (member.name, blocks, rows, role, recompute)
        found = self._sizes.get(key)
        if found is None:
            span = self._spans.get(blocks) or self._spans.setdefault(blocks, SpanBytes.of(self.facts, blocks))
            bare, one = (
                stage_bytes(
                    span, rows=rows, in_flight=n, members=role.members, adds=role.adds, waiting=n,
                    recompute=recompute, device=member,
                )
                for n in (0, 1)
            )  # fmt: skip
            takes = member.resident(blocks)
            fixed = bare.total - bare.slack - bare.sending - bare.code
            found = self._sizes[key] = Bytes(
                fixed=int(takes * fixed) + bare.code,
                kept=int(takes * (one.activations - bare.activations)),
                waiting=int(takes * one.communication),
                floor=int(takes * (fixed + bare.sending)) + bare.code,
                version=int(takes * 2 * span.trainable),  # with the gradients of its round
            )
        return found

    def _most_rows(
        self, member: DeviceTables, blocks: tuple[int, int], role: _Role, depth: int, recompute: bool
    ) -> int:
        """Most rows of every micro-batch that fit the member's memory."""
        if not member.memory_bytes:
            return self.rows
        flying, versions = self.schedule.in_flight(depth, self.micro_batches), self.schedule.versions(depth)
        low, high = 0, self.rows
        while low < high:  # memory grows with rows
            count = (low + high + 1) // 2
            needed = self._bytes(member, blocks, count, role, recompute).need(flying, 2, versions)
            fits = needed <= member.memory_bytes
            low, high = (count, high) if fits else (low, count - 1)
        return low

    def _most_turns(self, member: DeviceTables, blocks: tuple[int, int], role: _Role, depth: int, again: bool) -> int:
        """Most micro-batches of a round that keep the member's memory free enough."""
        if not member.memory_bytes:
            return self.micro_batches
        size = self._bytes(member, blocks, self.rows, role, again)
        room = member.memory_bytes - size.fixed - 2 * size.waiting - (self.schedule.versions(depth) - 1) * size.version
        most = self.schedule.in_flight(depth, self.micro_batches)
        flying = room // size.kept if size.kept else most
        return self.micro_batches if flying >= most else max(0, int(flying) * self.micro_batches // most)


@lru_cache(maxsize=4096)
def _turn_order(shares: tuple[int, ...], micro_batches: int) -> tuple[int, ...]:
    group = tuple(Member(device=str(i), share=s) for i, s in enumerate(shares))
    return tuple(int(d) for d in turns(Stage(blocks=(0, 1), group=group), micro_batches))


@lru_cache(maxsize=4096)
def _in_flight(
    schedule: Schedule, sharing: Sharing, shares: tuple[int, ...], place: int, depth: int, micro_batches: int
) -> int:
    group = tuple(Member(device=str(i), share=s) for i, s in enumerate(shares))
    stage = Stage(blocks=(0, 1), group=group, sharing=sharing)
    return most_in_flight(schedule, stage, str(place), depth, micro_batches)

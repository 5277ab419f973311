"""The only cost model: how long a round of a plan takes, and whether it fits. Many plans at once, for the search.

Seconds come from the recurrence of `plan/cost/recurrence.py` over stations (`plan/cost/stage_cost.py`), bytes from
`plan/cost/memory.py`. The event simulation (`plan/events/event_simulation.py`) walks the same action lists device by
device and is the finer of the two; it differs where this model is coarse: a group by samples has one clock, of its
slowest member and its busiest line; on half-duplex and shared media messages take turns in the order of the
recurrence; feeds only bound the round from below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from potluck.plan.cost.edges import PairBytes, StagePair
from potluck.plan.cost.recurrence import Pipeline, StationWork, Wire, finish_s
from potluck.plan.cost.shared_lines import Trunks
from potluck.plan.cost.stage_cost import Station, Stations
from potluck.plan.cost.steady_rounds import steady_s
from potluck.plan.cost.tables import Array, Tables
from potluck.plan.routes import Route, routes, rows
from potluck.plan.schedule.action_list import ROUNDS_AHEAD
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.types import DEFAULT_SCHEDULE, RAW, ModelFacts, Plan, Profile

StationLine = tuple[Station, ...]  # one plan: its stations in order
_Sent = tuple[tuple[float, ...], tuple[float, ...]]
_Tied = tuple[tuple[StagePair, int], ...]  # stages that share a weight, and its bytes
_Likeness = tuple[
    tuple[int, ...], tuple[StagePair, ...], tuple[StagePair, ...], _Tied
]  # depths, wires: what a batch has in common


@dataclass(frozen=True)
class Shape:
    """A plan before its shares are settled."""

    stages: tuple[tuple[StagePair, tuple[str, ...]], ...]  # blocks and devices
    depths: tuple[int, ...]
    recompute: tuple[bool, ...]

    @classmethod
    def of(cls, stages: Iterable[tuple[StagePair, tuple[str, ...]]], depths: Sequence[int]) -> Shape:
        """A shape that recomputes nothing."""
        return cls(tuple(stages), tuple(depths), (False,) * len(depths))


class CostModel:
    """Costs of plans for one model, one profile, one micro-batch size and count."""

    def __init__(
        self, facts: ModelFacts, profile: Profile, micro_batch_size: int, micro_batches: int,
        *, tables: Tables | None = None, schedule: str = DEFAULT_SCHEDULE,
    ) -> None:  # fmt: skip
        self.facts, self.profile = facts, profile
        self.rows, self.micro_batches = micro_batch_size, micro_batches
        self.tables, self.schedule = tables or Tables(profile), schedule_named(schedule)
        self.stations = Stations(facts, self.tables, micro_batch_size, micro_batches, self.schedule)
        self.trunks = Trunks(self.stations)
        self._wires: dict[tuple[int, int, int, bool], _Sent] = {}

    def line(self, shape: Shape) -> StationLine | None:
        """The stations of a shape with their best shares, or None if a group cannot or it does not fit."""
        found = []
        for (blocks, devices), depth, again in zip(shape.stages, shape.depths, shape.recompute, strict=True):
            station = self.stations.best(blocks, devices, depth, again)
            if station is None:
                return None
            found.append(station)
        line = tuple(found)
        return line if self.fits(line) else None

    def fits(self, line: StationLine) -> bool:
        """Whether every device has the memory for the plan."""
        waiting = self._waiting(line)
        return all(self.stations.fits(s, _depth(s), w) for s, w in zip(line, waiting, strict=True))

    def _waiting(self, line: StationLine) -> list[int]:
        out, _ = self._edges(line)
        waiting = [2] * len(line)
        for a, b in out:
            room = self.schedule.backlog(_depth(line[a]), _depth(line[b]), self.micro_batches)
            waiting[a], waiting[b] = max(waiting[a], room), max(waiting[b], room)
        return waiting

    def plan(self, line: StationLine) -> Plan:
        return Plan(
            micro_batch_size=self.rows, micro_batches=self.micro_batches, stages=tuple(s.stage for s in line),
            schedule=self.schedule.name,
        )  # fmt: skip

    def of_plan(self, plan: Plan) -> StationLine:
        befores = (RAW, *(s.codec for s in plan.stages))
        return tuple(self.stations.of(replace(s, depth=plan.depth(i)), befores[i]) for i, s in enumerate(plan.stages))

    def seconds(self, lines: Sequence[StationLine]) -> Array:
        """Seconds of a round of each plan."""
        result = np.zeros(len(lines))
        edges = [self._edges(line) for line in lines]
        alike: dict[_Likeness, list[int]] = {}
        for i, (line, (out, back)) in enumerate(zip(lines, edges, strict=True)):
            depths = tuple(_depth(s) for s in line)
            alike.setdefault((depths, tuple(sorted(out)), tuple(sorted(back)), self._tied_pairs(line)), []).append(i)
        for likeness, places in alike.items():
            some = [lines[i] for i in places]
            pipeline = self._pipeline(some, [edges[i] for i in places], likeness)
            shared_s = [self.trunks.busiest_s(lines[i], *edges[i]) for i in places]
            result[places] = np.maximum(self._round(some, pipeline, likeness[3]), shared_s)
        return result

    def _edges(self, line: StationLine) -> tuple[PairBytes, PairBytes]:
        return self.stations.edges.between([s.stage.blocks for s in line], [s.stage.codec for s in line])

    def _pipeline(
        self,
        lines: Sequence[StationLine],
        edges: Sequence[tuple[PairBytes, PairBytes]],
        likeness: _Likeness,
    ) -> Pipeline:
        depths, out_pairs, back_pairs, _ = likeness
        columns = list(zip(*lines, strict=True))

        def wire(pair: StagePair, way: int) -> Wire:
            a, b = pair
            both = [
                self.wire(line[a], line[b], sizes[way][pair], back=bool(way))
                for line, sizes in zip(lines, edges, strict=True)
            ]
            return Wire(self._by_micro_batch([w[0] for w in both]), self._by_micro_batch([w[1] for w in both]))

        return Pipeline(
            stages=[self._work(column) for column in columns],
            out={pair: wire(pair, 0) for pair in out_pairs},
            back={pair: wire(pair, 1) for pair in back_pairs},
            begin_s=[np.array([s.update_s for s in column]) for column in columns],
            depths=depths,
            micro_batches=self.micro_batches,
            medium=self.profile.medium,
            schedule=self.schedule,
        )

    def _work(self, column: Sequence[Station]) -> StationWork:
        """One stage of many plans."""
        if all(len(s.forward_s) == 1 for s in column):
            alone = ([s.forward_s for s in column], [s.backward_s for s in column])
            return StationWork(self._by_micro_batch(alone[0]), self._by_micro_batch(alone[1]), None)
        holder = np.array([s.turns for s in column], dtype=np.intp).T
        forward = [tuple(s.forward_s[place] for place in s.turns) for s in column]
        backward = [tuple(s.backward_s[place] for place in s.turns) for s in column]
        return StationWork(self._by_micro_batch(forward), self._by_micro_batch(backward), holder)

    def _by_micro_batch(self, seconds: Sequence[tuple[float, ...]]) -> Array:
        """Micro-batches × plans; a plan with one figure has it for all of them."""
        if all(len(s) == 1 for s in seconds):
            same: Array = np.empty((self.micro_batches, len(seconds)))  # a third of broadcast_to's time
            same[:] = [s[0] for s in seconds]
            return same
        return np.array([s if len(s) > 1 else s * self.micro_batches for s in seconds]).T

    def _round(self, lines: Sequence[StationLine], pipeline: Pipeline, tied: _Tied) -> Array:
        finished = finish_s(pipeline)
        for p, column in enumerate(zip(*lines, strict=True)):
            finished[p] = finished[p] + np.array([s.reduce_s for s in column])
        for (a, b), size in tied:
            swap = np.array([self._swap_s(line[a], line[b], size) for line in lines])
            finished[a] = finished[b] = np.maximum(finished[a], finished[b]) + swap
        feed = np.array([sum(s.feed_s for s in line) for line in lines])
        commit_s = [self.tables.commit_s(sum(len(s.stage.group) for s in line)) for line in lines]
        alone = np.max(finished, axis=0) + np.array(commit_s)
        if not self.schedule.flushes:
            alone = steady_s(lines, pipeline, alone, 1 + self.schedule.staleness)
        total: Array = np.maximum(alone, feed)
        late = np.array([max(s.fed_after_s for s in line) for line in lines])
        for i in np.flatnonzero(late > total).tolist():
            total[i] = max(total[i], (_waits_s(lines[i]) + alone[i]) / ROUNDS_AHEAD)
        return total

    def _tied_pairs(self, line: StationLine) -> _Tied:
        """Stages that share a weight: its gradients are summed across them."""
        if not self.facts.tied:
            return ()
        home = [i for i, s in enumerate(line) for _ in range(*s.stage.blocks)]
        sizes: dict[StagePair, int] = {}
        for _, users in self.facts.tied:
            owner = home[users[0]]
            for other in {home[u] for u in users} - {owner}:
                pair = (min(owner, other), max(owner, other))
                sizes[pair] = max(sizes.get(pair, 0), self.facts.blocks[users[0]].trainable_bytes)
        return tuple(sorted(sizes.items()))

    def _swap_s(self, a: Station, b: Station, size: int) -> float:
        """Gradients go to whoever adds up, the first of the earlier group, and the sum comes back to each."""
        adder, others = a.stage.group[0].device, [m.device for m in b.stage.group]
        there = max(self.tables.transfer_s(o, adder, size) + self.tables.latency_s(o, adder) for o in others)
        if self.profile.medium == "full":
            there = max(there, self.tables.inlet_s(adder, size * len(others)))
        back = sum(self.tables.transfer_s(adder, o, size) for o in others)
        return there + back + max(self.tables.latency_s(adder, o) for o in others)

    def wire(self, a: Station, b: Station, row_bytes: int, *, back: bool) -> _Sent:
        """Occupancy and further latency of what is sent between two stages, by micro-batch or one for all."""
        key = (a.crew, b.crew, row_bytes, back)
        found = self._wires.get(key)
        if found is None:
            alone = len(a.stage.group) == len(b.stage.group) == 1
            found = self._sent_alone(a, b, row_bytes, back) if alone else self._sent(a, b, row_bytes, back)
            self._wires[key] = found
        return found

    def _sent_alone(self, a: Station, b: Station, row_bytes: int, back: bool) -> _Sent:
        source, target = a.stage.group[0].device, b.stage.group[0].device
        if back:
            source, target = target, source
        seconds = self.tables.transfer_s(source, target, self.rows * row_bytes)
        return (seconds,), (self.tables.latency_s(source, target),)

    def _sent(self, a: Station, b: Station, row_bytes: int, back: bool) -> _Sent:
        plan = Plan(micro_batch_size=self.rows, micro_batches=self.micro_batches, stages=(a.stage, b.stage))
        known: dict[StagePair, tuple[float, float]] = {}  # of the same two members every time
        for m, pair in enumerate(zip(a.turns, b.turns, strict=True)):
            if pair not in known:
                ends = [rows(stage, m, self.rows, plan) for stage in (a.stage, b.stage)]
                known[pair] = self._message(routes(*(ends[::-1] if back else ends)), row_bytes)
        sent = [known[pair] for pair in zip(a.turns, b.turns, strict=True)]
        return tuple(occupancy for occupancy, _ in sent), tuple(latency for _, latency in sent)

    def _message(self, ways: Sequence[Route], row_bytes: int) -> tuple[float, float]:
        """Occupancy of the busiest line, and what the last rows need beside that."""
        sent: dict[str, float] = {}  # by whose line, or by the line that several share
        latest = 0.0
        for way in ways:
            seconds = self.tables.transfer_s(way.source, way.target, (way.stop - way.start) * row_bytes)
            line = self.tables.trunk(way.source, way.target) or way.source
            sent[line] = sent.get(line, 0.0) + seconds
            latest = max(latest, sent[line] + self.tables.latency_s(way.source, way.target))
        occupancy = max(sent.values())
        return occupancy, latest - occupancy


def _waits_s(line: StationLine) -> float:
    """Seconds by which samples sent at the beginning of a round delay it.

    They are sent two rounds ahead: if they take longer than a round, two rounds take one delay and one round.
    """
    ahead, most = 0.0, 0.0
    for station in line:
        most = max(most, station.fed_after_s - max(ahead, station.update_s))
        ahead += station.forward_s[station.turns[0]]
    return most


def _depth(station: Station) -> int:
    depth = station.stage.depth
    if depth is None:
        raise ValueError("a station is made for a depth")
    return depth

"""Lines that several links share, as the cost model sees them: a round takes no less than the busiest is taken for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from potluck.plan.cost.edges import StagePair
from potluck.plan.cost.stage_cost import Station, Stations
from potluck.plan.cost.summing import summing_parcels
from potluck.plan.routes import routes, rows
from potluck.types import COORDINATOR, Member, Plan

_Loads = Mapping[str, float]  # line → seconds, for each byte


class Trunks:
    """Loads of shared lines by plans of one micro-batch size; what groups send each other is kept."""

    def __init__(self, stations: Stations) -> None:
        self._stations, self._tables = stations, stations.tables
        self._wires: dict[tuple[int, int, bool], _Loads] = {}
        self._feeds: dict[int, _Loads] = {}
        self._sums: dict[tuple[Member, ...], _Loads] = {}

    def busiest_s(
        self, line: tuple[Station, ...], out: Mapping[StagePair, int], back: Mapping[StagePair, int]
    ) -> float:
        """Seconds of a round for which the busiest shared line is taken; 0 where there is none."""
        if not self._tables.has_trunks:
            return 0.0
        total: dict[str, float] = {}
        for sizes, backwards in ((out, False), (back, True)):
            for (a, b), row_bytes in sizes.items():
                _add(total, self._wire(line[a], line[b], backwards), row_bytes)
        for station in line:
            blocks = station.stage.blocks
            _add(total, self._feed(station), self._stations.edges.fed(blocks))
            gradients = sum(b.trainable_bytes for b in self._stations.facts.blocks[slice(*blocks)])
            _add(total, self._summing(station.stage.group), gradients)
        return max(total.values(), default=0.0)

    def _wire(self, a: Station, b: Station, backwards: bool) -> _Loads:
        """What goes between two groups in a round, for each byte of a row."""
        key = (a.crew, b.crew, backwards)
        if key not in self._wires:
            size, count = self._stations.rows, self._stations.micro_batches
            plan = Plan(micro_batch_size=size, micro_batches=count, stages=(a.stage, b.stage))
            first = {pair: m for m, pair in enumerate(zip(a.turns, b.turns, strict=True))}
            parcels = []
            for pair, times in Counter(zip(a.turns, b.turns, strict=True)).items():
                ends = [rows(stage, first[pair], size, plan) for stage in (a.stage, b.stage)]
                ways = routes(*(ends[::-1] if backwards else ends))
                parcels += [(way.source, way.target, float(times * (way.stop - way.start))) for way in ways]
            self._wires[key] = self._tables.trunk_loads(parcels)
        return self._wires[key]

    def _feed(self, station: Station) -> _Loads:
        """Samples of a round, for each byte of one."""
        if station.crew not in self._feeds:
            stage = station.stage
            rows_each = self._stations.rows if stage.sharing == "turns" else self._stations.micro_batches
            samples = self._stations.rows * self._stations.micro_batches
            parcels = [
                (COORDINATOR, m.device, float(samples if len(stage.group) == 1 else m.share * rows_each))
                for m in stage.group
            ]
            self._feeds[station.crew] = self._tables.trunk_loads(parcels)
        return self._feeds[station.crew]

    def _summing(self, group: tuple[Member, ...]) -> _Loads:
        """Gradients and their sums, for each byte of a group's gradients."""
        if group not in self._sums:
            self._sums[group] = self._tables.trunk_loads(summing_parcels(group))
        return self._sums[group]


def _add(total: dict[str, float], loads: _Loads, size_bytes: float) -> None:
    for line, seconds in loads.items():
        total[line] = total.get(line, 0.0) + seconds * size_bytes

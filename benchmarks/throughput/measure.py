"""Runs the cells of a benchmark on testbeds and keeps what every system reached."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.testbed import Testbed
from benchmarks.testbed.topology import topology
from benchmarks.throughput.cells import DDP, OURS, Bench, Cell
from benchmarks.throughput.others import best_micro_batch, ideal, peer
from benchmarks.throughput.session import Ours
from potluck.fleet_file import read_fleet

OURS_TIMEOUT_S = 1800.0


@dataclass
class Result:
    """One cell: samples per second of every system, each time it was measured."""

    cell: Cell
    rates: dict[str, list[float]] = field(default_factory=dict)
    ideal: list[float] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    peak_memory: dict[str, int] = field(default_factory=dict)
    oom_kills: int = 0

    def add(self, system: str, rate: float | None, error: str | None) -> None:
        """Keeps one measurement."""
        if rate is None:
            self.errors[system] = error or "no word"
        else:
            self.rates.setdefault(system, []).append(rate)
        words = f"{rate:.1f} samples/s" if rate is not None else self.errors[system]
        say(f"{self.cell.name} {self.cell.model} {system}: {words}")

    def rate(self, system: str) -> float | None:
        """The median."""
        found = self.rates.get(system)
        return statistics.median(found) if found else None

    @property
    def ideal_rate(self) -> float:
        """What plain trainers in all devices reach together."""
        return statistics.median(self.ideal)


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def run(bench: Bench, logs: Path) -> list[Result]:
    """Every cell, as often as the benchmark says; systems take turns."""
    results = {cell: Result(cell) for cell in bench.cells}
    for turn in range(bench.repeats):
        for cells in _alike(bench.cells):
            _measure(bench, cells, results, logs / f"{cells[0].fleet}-{cells[0].model}-{turn}")
    return list(results.values())


def _alike(cells: Iterable[Cell]) -> Iterator[list[Cell]]:
    """Cells of one model on the same devices, whose lines alone differ."""

    def key(cell: Cell) -> tuple[str, str, int]:
        return cell.fleet.split("-")[0], cell.model, cell.batch

    for _, some in groupby(sorted(cells, key=key), key):
        yield list(some)


def _measure(bench: Bench, cells: list[Cell], results: dict[Cell, Result], logs: Path) -> None:
    with Testbed(cells[0].fleet_file) as bed:
        micro_batch = best_micro_batch(cells[0])
        together = ideal(bed, cells[0], micro_batch)
        say(f"{cells[0].model} ideal: {together:.1f} samples/s, micro-batches of {micro_batch}")
        for cell in cells:
            results[cell].ideal.append(together)
            _set_lines(bed, cell)
            for system in bench.peers:
                sizes = [micro_batch] if system == DDP else bench.pipelining_sizes
                measured = peer(bed, cell, system, sizes, bench.peer_rounds)
                results[cell].add(system, measured.samples_per_s, measured.error)
        _measure_ours(bench, bed, cells, results, logs)
        # The testbed counts for all these cells together; the total is what is reported.
        results[cells[0]].oom_kills += sum(bed.oom_kills(device) for device in bed.devices)


def _measure_ours(bench: Bench, bed: Testbed, cells: list[Cell], results: dict[Cell, Result], logs: Path) -> None:
    with Ours(bed, logs) as ours:
        for cell in cells:
            _set_lines(bed, cell)
            for answer in ours.measure(cell, (OURS, *bench.planners), bench.seconds, OURS_TIMEOUT_S):
                rate = cell.batch / answer["round_s"] if answer["round_s"] else None
                results[cell].add(answer["planner"], rate, answer["error"])
                results[cell].plans[answer["planner"]] = answer
            results[cell].peak_memory = {device: bed.peak_memory(device) for device in bed.devices}


def _set_lines(bed: Testbed, cell: Cell) -> None:
    """Gives every device the line it has in the cell's fleet."""
    lines = topology(read_fleet(cell.fleet_file), None).lines
    for device in bed.devices:
        bed.set_bandwidth(device, lines[device])

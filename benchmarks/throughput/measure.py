"""Runs the cells of a benchmark on testbeds and keeps what every system reached."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.peers.one_core import SIZES
from benchmarks.testbed import Testbed
from benchmarks.testbed.topology import topology
from benchmarks.throughput.cells import DDP, OURS, PIPELINING, Bench, Cell
from benchmarks.throughput.one_core import one_core
from benchmarks.throughput.others import Ideal, peer
from benchmarks.throughput.session import Ours
from benchmarks.time_limit import TimeLimit
from potluck.errors import PotluckError
from potluck.settings.fleet_file import read_fleet

OURS_TIMEOUT_S = 1800.0
# Of cells of one model on the same devices, usually: what all take together, and each beyond that.
SHARED_S, CELL_S, CELLS_S = 110.0, 160.0, {"resnet50": 125.0}
MEMORY_ROOM, MEMORY_ROUNDS = 1.1, 4
NOT_REACHED = "not measured: our runtime had failed before"


class Rate(NamedTuple):
    """One measurement. A machine that others share is a third faster in one minute than in another, so the ideal is
    measured right before and after, and what counts is the ratio."""

    samples_per_s: float
    ideal: float

    @property
    def part(self) -> float:
        """Of the ideal."""
        return self.samples_per_s / self.ideal


class Yardstick:
    """The ideal before and after each measurement.

    Where a slow device takes long for the micro-batch that suits plain trainers best, brief ones tell how fast the
    machine is in this minute, and how much faster the best one is has been measured once, between two brief ones.
    """

    def __init__(self, ideal: Ideal) -> None:
        self._ideal, self._gain = ideal, 1.0
        ideal.burst(ideal.brief)  # the first is cold
        self.look()
        if not ideal.is_brief:
            before, best = self._last, ideal.burst()
            self.look()
            self._gain = best / ((before + self._last) / 2)
            say(f"plain trainers: {self._gain:.2f} times as fast at their best micro-batch as at {ideal.brief} rows")
            self._last *= self._gain

    def look(self) -> None:
        """Measures the ideal now: what it was may be minutes old."""
        self._last = self._gain * self._ideal.burst(self._ideal.brief)

    def beside(self, measure: Callable[[], float | None]) -> Rate | None:
        """Measures something, and the ideal beside it."""
        before, found = self._last, measure()
        self.look()
        return None if found is None else Rate(found, (before + self._last) / 2)


@dataclass
class Result:
    """One cell: samples per second of every system, each time it was measured, and of the ideal beside it."""

    cell: Cell
    rates: dict[str, list[Rate]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    oom_kills: int = 0
    channels_last_gain: float = 1.0  # of a plain trainer that gets its images in that order, as our devices do
    when: list[str] = field(default_factory=list)  # day and commit of each turn

    def add(self, system: str, rate: Rate | None, error: str | None) -> None:
        """Keeps one measurement."""
        if rate is None:
            self.errors[system] = error or "no word"
            words = self.errors[system]
        else:
            self.errors.pop(system, None)  # it failed in an earlier run, and does not any more
            self.rates.setdefault(system, []).append(rate)
            words = f"{rate.samples_per_s:.1f} samples/s where plain trainers reach {rate.ideal:.1f}: {rate.part:.2f}"
        say(f"{self.cell.name} {self.cell.model} {system}: {words}")

    def part(self, system: str) -> float | None:
        """The median part of the ideal that a system reaches."""
        found = self.rates.get(system)
        return statistics.median(r.part for r in found) if found else None

    def spread(self, system: str) -> tuple[float, float]:
        """The smallest and the largest part of the ideal that a system reached."""
        parts = [r.part for r in self.rates[system]]
        return min(parts), max(parts)

    def rate(self, system: str) -> float | None:
        """Samples per second on the machine as it mostly is: the part of the ideal, times the usual ideal."""
        part = self.part(system)
        return None if part is None else part * self.ideal_rate

    @property
    def ideal_rate(self) -> float:
        """What plain trainers in all devices usually reach together."""
        return statistics.median([r.ideal for found in self.rates.values() for r in found] or [0.0])


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def run(
    bench: Bench, logs: Path, when: str, before: Sequence[Result] = (), again: bool = False,
    limit: TimeLimit | None = None,
) -> Iterator[list[Result]]:  # fmt: skip
    """Every cell, as often as the benchmark says, beside what was measured before.

    In each turn the systems follow each other; with repeats, all of them have their turn before any has its next.

    Gives what there is so far each time some cells are done. Cells for which there is no time are left out.
    What was measured before in the same cells counts only if this is to be the same `again`: other code is
    another system.
    """
    results, limit = {result.cell: result for result in before}, limit or TimeLimit(None)
    for turn in range(bench.repeats):
        for alike in _alike(bench.cells):
            cells = _in_time(alike, limit)
            if not cells:
                continue
            for cell in cells:
                if cell not in results or not (again or turn):
                    results[cell] = Result(cell)
                results[cell].when.append(when)
            try:
                with limit.piece(_usual_s(cells)):
                    _measure(bench, cells, results, logs / f"{cells[0].fleet}-{cells[0].model}-{turn}")
            except (RuntimeError, OSError, PotluckError, click.ClickException) as error:
                _note(bench, [results[cell] for cell in cells], str(error))
            yield list(results.values())


def _usual_s(cells: Sequence[Cell]) -> float:
    return SHARED_S + sum(CELLS_S.get(cell.model, CELL_S) for cell in cells)


def _in_time(alike: list[Cell], limit: TimeLimit) -> list[Cell]:
    """The first of these cells, as many as there is time for."""
    fit = next((n for n in range(len(alike), 0, -1) if limit.allows(_usual_s(alike[:n]))), 0)
    limit.left_out += [cell.word for cell in alike[fit:]]
    for cell in alike[fit:]:
        say(f"{cell.word} is left out: there is no time for it")
    return alike[:fit]


def _note(bench: Bench, results: Iterable[Result], error: str) -> None:
    """What ended the measurement of these cells is why there is nothing of whoever was not measured."""
    say(f"given up: {error}")  # with repeats, everybody may have been measured in an earlier turn
    for result in results:
        for system in (*bench.peers, OURS, *bench.planners):
            if system not in result.rates and system not in result.errors:
                result.add(system, None, error)


def _alike(cells: Iterable[Cell]) -> Iterator[list[Cell]]:
    """Cells of one model on the same devices, whose lines alone differ."""

    def key(cell: Cell) -> tuple[str, str, int]:
        return cell.fleet.split("-")[0], cell.model, cell.batch

    for _, some in groupby(sorted(cells, key=key), key):
        yield list(some)


def _measure(bench: Bench, cells: list[Cell], results: dict[Cell, Result], logs: Path) -> None:
    with Testbed(cells[0].fleet_file) as bed:
        core = one_core(cells[0])
        for cell in cells:
            results[cell].channels_last_gain = core.channels_last_gain
        share = cells[0].batch // len(bed.devices)
        # Where rounds take long, not all sizes are tried.
        piped = core.promising(bench.pipelining_sizes, cells[0].batch, len(bed.devices))
        told = {
            DDP: core.fastest([size for size in SIZES if size <= share]),
            PIPELINING: core.fastest(piped),
        }
        sizes = {DDP: (told[DDP].micro_batch,), PIPELINING: piped}
        say(f"{cells[0].model} on one core: {core}; told: {told}")
        brief = core.brief_size(min(device.speed for device in bed.fleet.devices))
        with Ideal(bed, cells[0], core.ideal_size, brief, bench.ideal_s) as ideal:
            yardstick = Yardstick(ideal)
            for cell in cells:
                _set_lines(bed, cell)
                for system in bench.peers:
                    kind = DDP if system == DDP else PIPELINING
                    _measure_peer(bench, bed, results[cell], system, sizes[kind], told[kind].options, yardstick)
            _measure_ours(bench, bed, cells, results, logs, yardstick)
        for cell in cells if bench.all_in_little_memory else cells[:1]:
            _train_in_little_memory(bed, results[cell], logs / cell.name)
        # The testbed counts for all these cells together; the total is what is reported.
        results[cells[0]].oom_kills += sum(bed.oom_kills(device) for device in bed.devices)


def _measure_peer(
    bench: Bench, bed: Testbed, result: Result, system: str, sizes: Sequence[int], options: Sequence[str],
    yardstick: Yardstick,
) -> None:  # fmt: skip
    errors: list[str | None] = []

    def measure() -> float | None:
        measured = peer(bed, result.cell, system, sizes, bench.seconds, *options)
        errors.append(measured.error)
        return measured.samples_per_s

    result.add(system, yardstick.beside(measure), *errors)


def _measure_ours(
    bench: Bench, bed: Testbed, cells: list[Cell], results: dict[Cell, Result], logs: Path, yardstick: Yardstick
) -> None:
    """Plans and trains on our runtime; where it fails, that is what was found out, and what was measured counts."""
    cell, system = cells[0], OURS
    try:
        with Ours(bed, logs) as ours:
            for cell in cells:
                system = OURS
                _set_lines(bed, cell)
                planners = (OURS, *bench.planners)
                answers = ours.plan(cell, planners, bench.seconds, OURS_TIMEOUT_S, None, bench.try_plan_s)
                yardstick.look()
                for answer in answers:
                    system = answer["planner"]
                    _train(ours, results[cell], answer, yardstick)
    except (RuntimeError, OSError) as error:
        results[cell].add(system, None, str(error))
        systems = (OURS, *bench.planners)
        results[cell].errors |= dict.fromkeys(systems[systems.index(system) + 1 :], NOT_REACHED)
        for later in cells[cells.index(cell) + 1 :]:
            results[later].errors |= dict.fromkeys(systems, NOT_REACHED)


def _train_in_little_memory(bed: Testbed, result: Result, logs: Path) -> None:
    """Trains by our plan once more, on devices that have the memory that it says and a tenth more."""
    answer = result.plans.get(OURS)
    if answer is None or answer["error"] is not None:
        return
    _set_lines(bed, result.cell)
    for known in bed.fleet.devices:  # a plan before may have left some of them little
        bed.set_memory(known.name, known.memory_bytes or None)
    for device, size in answer["budget_bytes"].items():
        bed.set_memory(device, int(size * MEMORY_ROOM))
    before = sum(map(bed.oom_kills, bed.devices))
    try:
        with Ours(bed, logs / "little-memory") as ours:
            ours.train_by(result.cell, answer["given"], MEMORY_ROUNDS, OURS_TIMEOUT_S)
        words = "trained"
        result.errors.pop("little memory", None)  # as it may have failed in an earlier turn
    except (RuntimeError, OSError) as error:
        words = result.errors["little memory"] = str(error)
    kills = sum(map(bed.oom_kills, bed.devices)) - before
    say(f"{result.cell.name} {result.cell.model} in the memory of the plan and a tenth: {words}, {kills} killed")


def _train(ours: Ours, result: Result, answer: dict[str, Any], yardstick: Yardstick) -> None:
    """Trains by one planner's plan; one that another planner found too is not trained again."""
    planner, twin = answer["planner"], answer["same_as"]
    result.plans[planner] = answer
    if answer["error"] is not None:
        result.add(planner, None, answer["error"])
    elif twin is not None:
        result.add(planner, result.rates[twin][-1], None)
    else:

        def measure() -> float:
            found = ours.train(planner, OURS_TIMEOUT_S)
            answer["spent_s"] = found["spent_s"]
            return result.cell.batch / float(found["round_s"])

        result.add(planner, yardstick.beside(measure), None)


def _set_lines(bed: Testbed, cell: Cell) -> None:
    """Gives every device the line it has in the cell's fleet."""
    lines = topology(read_fleet(cell.fleet_file), None).lines
    for device in bed.devices:
        bed.set_bandwidth(device, lines[device])

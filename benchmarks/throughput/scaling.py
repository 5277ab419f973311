"""How efficiency changes as work grows: more devices, and more micro-batches in a round.

    sudo .venv/bin/python -m benchmarks.throughput.scaling --json

Equal devices of a quarter of a core at 1 Gbit/s train MobileNetV2 by our plans. Efficiency is against plain trainers in
the same devices, all at once, right before and after. Needs root (see docs/testbed.md).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.picture import document
from benchmarks.testbed import Testbed, ended_by_signals
from benchmarks.throughput.cells import OURS, Cell
from benchmarks.throughput.kept import check_writable
from benchmarks.throughput.machine import check_here, commit, machine
from benchmarks.throughput.measure import OURS_TIMEOUT_S, Yardstick, say
from benchmarks.throughput.one_core import one_core
from benchmarks.throughput.others import Ideal
from benchmarks.throughput.session import Ours
from potluck.errors import PotluckError

MODEL = "mobilenet_v2"
DEVICES = (1, 2, 3, 4, 6)
MICRO_BATCHES, ROWS, STAGES = (8, 16, 32, 64), 8, 3
SECONDS = 12.0
FIGURES, CHART = "scaling.json", "scaling.svg"
_LINES = 0.2  # between two of the chart
_LEFT, _TOP, _WIDTH, _HEIGHT, _APART, _MARGIN = 50, 40, 260, 180, 90, 24


def fleet_text(count: int) -> str:
    """A fleet of equal devices."""
    devices = (f'[[device]]\nname = "d{i}"\nspeed = 0.25\nmemory = "2GB"\n' for i in range(count))
    return 'bandwidth = "1Gbit"\n' + "".join(devices)


@dataclass
class Efficiencies:
    """Our part of the ideal, by the number of devices and by that of micro-batches."""

    devices: dict[int, float] = field(default_factory=dict)
    micro_batches: dict[int, float] = field(default_factory=dict)

    @property
    def panels(self) -> dict[str, dict[int, float]]:
        """What grows, and the points over it."""
        return {
            "devices (240 samples a round)": self.devices,
            f"micro-batches of {ROWS} in a round ({STAGES} devices)": self.micro_batches,
        }


class Point(NamedTuple):
    """What is trained, and the number of devices or micro-batches that it stands for."""

    number: int
    batch: int
    micro_batch: int | None = None  # of any size


def measure(logs: Path, keep: Callable[[Efficiencies], None]) -> Efficiencies:
    """All points; what there is so far is kept after each."""
    found = Efficiencies()

    def add(points: dict[int, float], number: int, part: float) -> None:
        points[number] = part
        keep(found)

    for n in DEVICES:
        efficiencies(n, [Point(n, 240)], logs / str(n), partial(add, found.devices))
    batches = [Point(m, m * ROWS, ROWS) for m in MICRO_BATCHES]
    efficiencies(STAGES, batches, logs / "micro-batches", partial(add, found.micro_batches))
    return found


def efficiencies(count: int, points: Sequence[Point], logs: Path, add: Callable[[int, float], None]) -> None:
    """Our part of the ideal on so many devices at each point, told as soon as it is known."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "fleet.toml"
        path.write_text(fleet_text(count))
        cell = Cell("equal", MODEL)
        size = one_core(cell).ideal_size
        with Testbed(path) as bed, Ideal(bed, cell, size) as ideal, Ours(bed, logs) as ours:
            yardstick = Yardstick(ideal)
            for number, batch, micro_batch in points:
                one = Cell("equal", MODEL, batch)
                [answer] = ours.plan(one, (OURS,), SECONDS, OURS_TIMEOUT_S, micro_batch)
                if answer["error"] is not None:
                    raise RuntimeError(answer["error"])
                yardstick.look()
                rate = yardstick.beside(partial(_rate, ours, batch))
                assert rate is not None
                say(f"{count} devices, batch {batch}: {rate.part:.2f} of the ideal, {answer['plan']}")
                add(number, rate.part)


def _rate(ours: Ours, batch: int) -> float:
    return batch / float(ours.train(OURS, OURS_TIMEOUT_S)["round_s"])


def chart(panels: Mapping[str, Mapping[int, float]]) -> str:
    """Efficiency over each thing that grows, as an SVG document."""
    parts = []
    top = 1.2 * max(1.0, *(part for points in panels.values() for part in points.values()))
    for number, (title, points) in enumerate(panels.items()):
        left = _LEFT + number * (_WIDTH + _APART)
        step = (_WIDTH - 2 * _MARGIN) / max(1, len(points) - 1)
        heights = (_TOP + _HEIGHT * (1 - part / top) for part in points.values())
        places = [(left + _MARGIN + i * step, height) for i, height in enumerate(heights)]
        for level in (n * _LINES for n in range(int(top / _LINES) + 1)):
            y = _TOP + _HEIGHT * (1 - level / top)
            parts.append(f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{level:.1f}</text>')
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#4878a8" stroke-width="2"/>')
        for (x, y), (count, part) in zip(places, points.items(), strict=True):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#4878a8"/>')
            parts.append(f'<text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle">{part:.2f}</text>')
            parts.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{count}</text>')
        parts.append(f'<text x="{left + _WIDTH / 2}" y="{_TOP + _HEIGHT + 36}" text-anchor="middle">{title}</text>')
    width = _LEFT + len(panels) * (_WIDTH + _APART)
    title = "Efficiency: samples per second over those of plain trainers"
    return document(width, _TOP + _HEIGHT + 50, title, parts)


def write(folder: Path | None, where: Mapping[str, Any], found: Efficiencies) -> None:
    """Figures and chart of what there is so far, if there is a folder for them."""
    if folder is not None:
        (folder / FIGURES).write_text(json.dumps({**asdict(found), **where}, indent=1) + "\n")
        (folder / CHART).write_text(chart(found.panels))


@click.command()
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and chart.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(results: Path | None, as_json: bool) -> None:
    """Measures efficiency as work grows; takes some 25 minutes.

    Example: sudo .venv/bin/python -m benchmarks.throughput.scaling --json
    """
    ended_by_signals()
    check_here()
    where = {"model": MODEL, "machine": machine(), "commit": commit()}  # of the code as it is now
    if results is not None:
        check_writable(results, (results / FIGURES, results / CHART))
    logs = Path(tempfile.mkdtemp(prefix="potluck-scaling-"))
    say(f"logs: {logs} (removed if nothing fails)")
    try:
        found = measure(logs, partial(write, results, where))
    except (RuntimeError, OSError, PotluckError) as error:
        raise click.ClickException(f"{error}; logs: {logs}") from None
    shutil.rmtree(logs)
    for title, points in found.panels.items():
        print(f"{title}: " + ", ".join(f"{count}: {part:.2f}" for count, part in points.items()))
    if as_json:
        print(json.dumps({**asdict(found), **where}))


if __name__ == "__main__":
    main()

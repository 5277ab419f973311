"""What many workers make of each policy: how busy they are, how busy the server is, and how old what they push is.

    python -m benchmarks.sync.crowd --results benchmarks/results

The policies of real runs under virtual time (`potluck/simulate/push_policies.py`), with workers of three speeds, each
behind a line of its own, and one server that takes 2 ms for a push: no testbed is needed, and about two minutes are
enough. Of 10,000 workers only the first 30 s are simulated, in which each pushes a few times at most: that server can
take 15,000.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.picture import document
from benchmarks.sync.curves import PUSH_S, SPEEDS, STEP_S
from potluck.paramserver.policy_choice import choose
from potluck.simulate.problem import Problem
from potluck.simulate.push_policies import Crowd, Simulation

POLICIES = ("adsp", "ours", "local", "bsp")
WORKERS = (10, 100, 1_000, 10_000)
SECONDS = 240.0  # virtual ones
LONGEST = 300_000.0  # virtual seconds of all workers together: more would take more than two minutes

_LEFT, _TOP, _WIDTH, _HEIGHT, _APART = 50, 60, 230, 210, 60
_COLOURS = dict(zip(POLICIES, ("#4878a8", "#1f2f78", "#7a7a20", "#a83232"), strict=True))


class Found(NamedTuple):
    """Of one policy with so many workers."""

    busy: float  # part of the time in which workers train
    served: float  # part of the time in which the server is busy
    staleness: float  # pushes by others since the weights that a push started from, mean


Crowds = Mapping[str, Sequence[Found]]  # policy → one for each number of workers


class Panel(NamedTuple):
    """One of the pictures beside each other."""

    what: str
    value: Callable[[Found], float]
    place: Callable[[float], float]  # from 0 at the bottom to 1 at the top
    marks: Mapping[str, float]


def _log(value: float) -> float:
    return math.log10(max(value, 1.0)) / math.log10(WORKERS[-1])


PANELS = (
    Panel("part of the time workers train", lambda f: f.busy, lambda v: v, {"0": 0.0, "1": 1.0}),
    Panel("part of the time the server works", lambda f: f.served, lambda v: v, {"0": 0.0, "1": 1.0}),
    Panel("pushes by others, mean", lambda f: f.staleness, _log, {"1": 1.0, "100": 100.0, "10,000": 10_000.0}),
)


def found(policy: str, workers: int) -> Found:
    """One run."""
    speeds = itertools.islice(itertools.cycle(SPEEDS), workers)
    fleet = Crowd(tuple(STEP_S / speed for speed in speeds), push_s=PUSH_S)
    chosen = choose(policy).policy(max(fleet.step_s))
    outcome = Simulation(chosen, fleet, Problem.of(), 0).run(min(SECONDS, LONGEST / workers), looks=1)
    return Found(outcome.busy, outcome.served, outcome.staleness)


def crowds(workers: Sequence[int]) -> Crowds:
    """All of them."""
    return {policy: [found(policy, number) for number in workers] for policy in POLICIES}


def chart(workers: Sequence[int], each: Crowds) -> str:
    """Panels beside each other over the number of workers, as an SVG document."""
    parts = [f'<text x="{_LEFT + 90 * i}" y="44" fill="{c}">{p}</text>' for i, (p, c) in enumerate(_COLOURS.items())]
    for number, panel in enumerate(PANELS):
        parts += _panel(panel, _LEFT + number * (_WIDTH + _APART), workers, each)
    width = _LEFT + len(PANELS) * (_WIDTH + _APART)
    return document(width, _TOP + _HEIGHT + 50, "Simulated workers: who waits, and for what", parts)


def _panel(panel: Panel, left: float, workers: Sequence[int], each: Crowds) -> list[str]:
    apart = _WIDTH / max(1, len(workers) - 1)

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (1 - panel.place(value))

    parts = [f'<rect x="{left}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ddd"/>']
    for place, count in enumerate(workers):
        x = left + place * apart
        parts.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{count:,}</text>')
    for policy, row in each.items():
        line = " ".join(f"{left + i * apart:.1f},{y(panel.value(one)):.1f}" for i, one in enumerate(row))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_COLOURS[policy]}" stroke-width="2"/>')
    for mark, value in panel.marks.items():
        parts.append(f'<text x="{left - 4}" y="{y(value) + 4:.1f}" text-anchor="end">{mark}</text>')
    parts.append(f'<text x="{left + _WIDTH / 2}" y="{_TOP + _HEIGHT + 36}" text-anchor="middle">{panel.what}</text>')
    return parts


def table(workers: Sequence[int], each: Crowds) -> str:
    """The same in words."""
    lines = []
    for policy, row in each.items():
        for count, one in zip(workers, row, strict=True):
            lines.append(
                f"{policy:6} {count:6,} workers: busy {one.busy:.2f}, server {one.served:.2f}, "
                f"pushes by others {one.staleness:.0f}"
            )
    return "\n".join(lines)


def as_figures(workers: Sequence[int], each: Crowds) -> Mapping[str, Any]:
    """What is kept."""
    return {
        "workers": list(workers), "speeds": SPEEDS, "push_s": PUSH_S,
        "policies": {policy: [one._asdict() for one in row] for policy, row in each.items()},
    }  # fmt: skip


@click.command()
@click.option("--most", default=WORKERS[-1], show_default=True, type=click.IntRange(WORKERS[0]), help="Workers.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and chart.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(most: int, results: Path | None, as_json: bool) -> None:
    """Simulates crowds. Example: python -m benchmarks.sync.crowd --json"""
    workers = [number for number in WORKERS if number <= most]
    each = crowds(workers)
    print(table(workers, each))
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        (results / "sync-crowd.json").write_text(json.dumps(as_figures(workers, each), indent=1) + "\n")
        (results / "sync-crowd.svg").write_text(chart(workers, each))
    if as_json:
        print(json.dumps(as_figures(workers, each)))


if __name__ == "__main__":
    main()

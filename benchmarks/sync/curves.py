"""How soon each policy reaches a loss as workers differ more, pushes take longer, and there are more workers.

    python -m benchmarks.sync.curves --results benchmarks/results

The policies of real runs under virtual time (`potluck/simulate/push_policies.py`), on a quadratic loss that each
worker sees through data of its own: no testbed is needed, and a minute is enough.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.picture import document
from potluck.paramserver.policy_choice import choose
from potluck.simulate.problem import Problem
from potluck.simulate.push_policies import Crowd, Simulation

POLICIES = ("bsp", "ssp", "local", "adacomm", "adsp", "ours")
STEP_S = 0.1  # of a worker of speed 1
PUSH_S = 0.35  # 4 MB over 100 Mbit/s, one way
SPEEDS = (1.0, 1.2, 0.33)
MOST_S, LOOKS, TARGET = 600.0, 1200, 0.45
SEEDS = 5
HETEROGENEITY = (1.45, 1.8, 2.2, 2.6, 3.2)  # the mean speed over the slowest
DELAYS = (0.0, 0.25, 0.5, 1.0, 2.0)  # seconds that a push takes longer
WORKERS = (3, 6, 9, 12)
MOMENTA = (0.0, 0.2, 0.3, 0.4, 0.6)  # of the server's outer step: `ours` has 0.2, the others none

_LEFT, _TOP, _WIDTH, _HEIGHT, _APART = 50, 60, 230, 210, 50
_COLOURS = dict(zip(POLICIES, ("#a83232", "#c77f1a", "#7a7a20", "#3a8a4a", "#4878a8", "#1f2f78"), strict=True))

Seconds = dict[str, list[float | None]]  # policy → one for each point


@dataclass(frozen=True)
class Curve:
    """One thing that grows, and what each policy takes then."""

    what: str
    points: tuple[float, ...]
    seconds: Seconds


def speeds_for(heterogeneity: float) -> tuple[float, ...]:
    """Two fast workers and one so slow that the mean is so many times its speed."""
    fast = SPEEDS[:2]
    return (*fast, sum(fast) / (3 * heterogeneity - 1))


def reached_s(
    policy: str, speeds: Sequence[float], push_s: float, seed: int, outer_momentum: float | None = None
) -> float | None:
    """When a policy is down to the target, in one run."""
    fleet = Crowd(tuple(STEP_S / speed for speed in speeds), push_s=push_s)
    chosen = choose(policy).policy(max(fleet.step_s))
    if outer_momentum is not None:
        chosen.outer_momentum = outer_momentum
    return Simulation(chosen, fleet, Problem.of(), seed).run(MOST_S, TARGET, LOOKS).reached_s


def curve(
    what: str, points: Sequence[float], fleet_at: Callable[[float], tuple[Sequence[float], float, float | None]]
) -> Curve:
    """The median over seeds at every point; None where most runs did not get there."""
    seconds: Seconds = {}
    for policy in POLICIES:
        for point in points:
            speeds, push_s, momentum = fleet_at(point)
            found = [reached_s(policy, speeds, push_s, seed, momentum) for seed in range(SEEDS)]
            middle = statistics.median(math.inf if s is None else s for s in found)
            seconds.setdefault(policy, []).append(middle if math.isfinite(middle) else None)
    return Curve(what, tuple(points), seconds)


def curves() -> list[Curve]:
    """All of them."""
    return [
        curve("mean speed over the slowest", HETEROGENEITY, lambda h: (speeds_for(h), PUSH_S, None)),
        curve("seconds that a push takes longer", DELAYS, lambda d: (SPEEDS, PUSH_S + d / 2, None)),
        curve("workers", WORKERS, lambda n: (SPEEDS * round(n / 3), PUSH_S, None)),
        curve("outer momentum", MOMENTA, lambda m: (SPEEDS, PUSH_S, m)),
    ]


def chart(found: Sequence[Curve]) -> str:
    """Seconds over each thing that grows, as an SVG document."""
    highest = max((s for c in found for row in c.seconds.values() for s in row if s is not None), default=1.0)
    lowest = min((s for c in found for row in c.seconds.values() for s in row if s is not None), default=1.0) / 1.2
    parts = [f'<text x="{_LEFT + 90 * i}" y="44" fill="{c}">{p}</text>' for i, (p, c) in enumerate(_COLOURS.items())]
    for number, one in enumerate(found):
        left = _LEFT + number * (_WIDTH + _APART)
        parts += _panel(one, left, lambda s: _TOP + _HEIGHT * (1 - math.log(s / lowest) / math.log(highest / lowest)))
    width = _LEFT + len(found) * (_WIDTH + _APART)
    return document(width, _TOP + _HEIGHT + 50, "Simulated seconds until the loss is at its target", parts)


def _panel(one: Curve, left: float, y: Callable[[float], float]) -> list[str]:
    least, most = one.points[0], one.points[-1]
    places = {point: left + _WIDTH * (point - least) / (most - least) for point in one.points}
    parts = [f'<rect x="{left}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ddd"/>']
    for point, x in places.items():
        parts.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{point:g}</text>')
    for policy, row in one.seconds.items():
        known = [(places[p], y(s)) for p, s in zip(one.points, row, strict=True) if s is not None]
        line = " ".join(f"{x:.1f},{at:.1f}" for x, at in known)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_COLOURS[policy]}" stroke-width="2"/>')
    ends = [s for row in one.seconds.values() for s in (row[0],) if s is not None]
    for mark in (min(ends, default=1.0), max(ends, default=1.0)):
        parts.append(f'<text x="{left - 4}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:.0f} s</text>')
    parts.append(f'<text x="{left + _WIDTH / 2}" y="{_TOP + _HEIGHT + 36}" text-anchor="middle">{one.what}</text>')
    return parts


def table(found: Sequence[Curve]) -> str:
    """The same in words."""
    lines = []
    for one in found:
        lines.append(f"{one.what}: " + ", ".join(f"{point:g}" for point in one.points))
        for policy, row in one.seconds.items():
            lines.append(f"  {policy:8}" + ", ".join("-" if s is None else f"{s:.0f} s" for s in row))
    return "\n".join(lines)


def as_figures(found: Sequence[Curve]) -> Mapping[str, Any]:
    """What is kept."""
    return {
        "target": TARGET, "seeds": SEEDS, "speeds": SPEEDS, "push_s": PUSH_S,
        "curves": {one.what: {"points": one.points, "seconds": one.seconds} for one in found},
    }  # fmt: skip


@click.command()
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Folder for figures and chart.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def main(results: Path | None, as_json: bool) -> None:
    """Simulates policies. Example: python -m benchmarks.sync.curves --json"""
    found = curves()
    print(table(found))
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        (results / "sync-curves.json").write_text(json.dumps(as_figures(found), indent=1) + "\n")
        (results / "sync-curves.svg").write_text(chart(found))
    if as_json:
        print(json.dumps(as_figures(found)))


if __name__ == "__main__":
    main()

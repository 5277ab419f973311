"""The held-out loss of every policy over time, as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.picture import document

COLOURS = {
    "ours": "#4878a8", "adsp": "#d9a441", "local": "#8fb572", "adacomm": "#a05c8c", "ssp": "#b9b9b9", "bsp": "#c46a5a",
    "flower": "#5aa7a7", "hivemind": "#7d6b91",
}  # fmt: skip
_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 60, 640, 300
_MARKS = 6  # of time

Points = Sequence[tuple[float, float]]  # seconds, loss


def chart(curves: Mapping[str, Points], targets: Sequence[float]) -> str:
    """Lines of the best loss so far, and the targets."""
    falling = {policy: best for policy, points in curves.items() if (best := _best_so_far(points))}
    losses = [loss for points in falling.values() for _, loss in points] + list(targets)
    lowest, highest = min(losses, default=0.5), max(losses, default=1.0)
    longest = max((points[-1][0] for points in falling.values()), default=1.0) or 1.0
    tall = math.log(highest / lowest) or 1.0

    def place(at_s: float, loss: float) -> tuple[float, float]:
        return _LEFT + _WIDTH * at_s / longest, _TOP + _HEIGHT * math.log(highest / loss) / tall

    parts = [f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#ddd"/>']
    for target in targets:
        y = place(0.0, target)[1]
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#999"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{target:.3f}</text>')
    for number, (policy, points) in enumerate(falling.items()):
        colour = COLOURS.get(policy, "#444")
        line = " ".join("{:.1f},{:.1f}".format(*place(at_s, loss)) for at_s, loss in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT + 90 * number}" y="44" fill="{colour}">{escape(policy)}</text>')
    for mark in range(_MARKS + 1):
        x, at_s = _LEFT + _WIDTH * mark / _MARKS, longest * mark / _MARKS
        parts.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{at_s:.0f} s</text>')
    title = "Loss on held-out samples; grey lines: what one process reaches after 1, 2 and 4 epochs"
    return document(_LEFT + _WIDTH + 40, _TOP + _HEIGHT + 30, title, parts)


def _best_so_far(points: Points) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at_s, loss in points:
        if math.isfinite(loss) and loss > 0:
            found.append((at_s, min(loss, found[-1][1]) if found else loss))
    return found

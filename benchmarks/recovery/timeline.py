"""Rounds committed over time through a loss, ours against the baselines, as an SVG document."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.picture import document
from benchmarks.recovery.session import Outcome

_LEFT, _TOP, _WIDTH, _HEIGHT = 50, 40, 560, 260
_COLOURS = {"potluck": "#1f5fa8", "heavy rescheduling": "#c77f1a", "cold restart": "#a83232"}
_BEFORE_S = 10.0


def progress(outcome: Outcome) -> list[tuple[float, int]]:
    """(seconds since the loss, rounds beyond those before it), at each commit that is one more than ever."""
    if outcome.fault_s is None:
        return []
    newest, points = -1, []
    for record, at_s in zip(outcome.rounds, outcome.committed_s, strict=True):
        if record.round > newest:
            newest = record.round
            points.append((at_s - outcome.fault_s, record.round))
    reached = max((r for t, r in points if t <= 0), default=0)
    return [(t, r - reached) for t, r in points if t > -_BEFORE_S]


def timeline(outcomes: Mapping[str, Outcome], title: str) -> str:
    """The picture."""
    lines = {name: progress(outcome) for name, outcome in outcomes.items()}
    end = max((t for points in lines.values() for t, _ in points), default=1.0)
    low = min((r for points in lines.values() for _, r in points), default=0)
    high = max((r for points in lines.values() for _, r in points), default=1)

    def x(t: float) -> float:
        return _LEFT + _WIDTH * (t + _BEFORE_S) / (end + _BEFORE_S)

    def y(r: float) -> float:
        return _TOP + _HEIGHT * (1 - (r - low) / max(1, high - low))

    parts: list[str] = []
    step = 10 if end < 80 else 20
    for mark in range(0, int(end) + 1, step):
        place = f"{x(mark):.1f}"
        parts.append(f'<line x1="{place}" x2="{place}" y1="{_TOP}" y2="{_TOP + _HEIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{place}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{mark} s</text>')
    parts.append(
        f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{_TOP}" y2="{_TOP + _HEIGHT}" stroke="#333" '
        'stroke-dasharray="4 3"/>'
    )
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS.get(name, "#555")
        path, last = "", None
        for t, r in points:  # a step at each commit
            path += f"{x(t):.1f},{y(r if last is None else last):.1f} {x(t):.1f},{y(r):.1f} "
            last = r
        parts.append(f'<polyline points="{path.strip()}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT + 8}" y="{_TOP + 14 + 15 * number}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="14" y="{_TOP + _HEIGHT / 2}" transform="rotate(-90 14 {_TOP + _HEIGHT / 2})">rounds</text>')
    return document(_LEFT + _WIDTH + 30, _TOP + _HEIGHT + 30, title, parts)

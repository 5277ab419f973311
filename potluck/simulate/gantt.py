"""A round as a picture: who computes what when. As an SVG file, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from potluck.metrics.lanes import Span, lanes
from potluck.simulate.outlook import Outlook
from potluck.units import milliseconds

COLOURS = {"forward": "#4878a8", "backward": "#8fb572", "weights": "#c5dcae", "reduce": "#d9a441", "update": "#a05c8c"}
OTHER = "#b9b9b9"  # sending and receiving
LETTERS = {"forward": "▓", "backward": "░", "weights": "w", "reduce": "r", "update": "u"}
_LANE, _TOP, _LEFT, _WIDTH = 26, 34, 130, 1000
_LEAST_LABEL = 16  # pixels a box needs for a number


def svg(run: Outlook, title: str = "") -> str:
    """The last simulated round as an SVG document; hover over a box for its times."""
    begin, end = window(run)
    scale = _WIDTH / max(end - begin, 1e-12)
    drawn = lanes(run.spans, run.plan.devices, begin, end)
    height = _TOP + _LANE * len(drawn) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="14">{escape(title or _heading(run))}</text>',
    ]
    for place, device in enumerate(run.devices):
        y = _TOP + place * _LANE
        parts.append(f'<text x="8" y="{y + 16}">{escape(device.name)} · stage {device.stage + 1}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y + 22.5}" y2="{y + 22.5}" stroke="#eee"/>')
        parts += [_box(span, begin, scale, y) for span in drawn[device.name]]
    parts += _axis(begin, end, scale, _TOP + _LANE * len(drawn) + 4)
    parts += _legend(height - 10)
    return "\n".join([*parts, "</svg>", ""])


def text(run: Outlook, width: int = 80) -> list[str]:
    """The last simulated round as lines: forwards dark, backwards light, one column a slice of time."""
    begin, end = window(run)
    drawn = lanes(run.spans, run.plan.devices, begin, end)
    margin = min(20, max(len(name) for name in drawn))
    columns = max(10, width - margin - 3)
    step = (end - begin) / columns
    lines = []
    for name, spans in drawn.items():
        row = "".join(_letter(spans, begin + i * step, begin + (i + 1) * step) for i in range(columns))
        lines.append(f"{name[:margin]:<{margin}} │{row}│")
    lines.append(f"{'':<{margin}}  0{milliseconds(end - begin):>{columns - 1}}")
    lines.append(f"{'':<{margin}}  ▓ forward  ░ backward  w weights  r reduce  u update  · sending and receiving")
    return lines


def window(run: Outlook) -> tuple[float, float]:
    """The time that the picture shows: from the commit before the last round to the last one."""
    return (run.ends_s[-2] if len(run.ends_s) > 1 else 0.0), run.ends_s[-1]


def _heading(run: Outlook) -> str:
    return (
        f"a round of {run.plan.batch_size} samples: {milliseconds(run.round_s)}, {run.samples_per_s:,.0f} samples/s, "
        f"devices busy {run.utilisation:.0%}"
    )


def _box(span: Span, begin: float, scale: float, y: float) -> str:
    x = _LEFT + max(0.0, span.start_s - begin) * scale
    wide = max((span.stop_s - max(span.start_s, begin)) * scale, 0.3)
    number = "" if span.micro_batch < 0 else f" {span.micro_batch}"
    hint = f"{span.device}: {span.kind.replace('_', ' ')}{number}, {milliseconds(span.stop_s - span.start_s)}"
    box = (
        f'<g><title>{escape(hint)}</title><rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="20" rx="1.5" '
        f'fill="{COLOURS.get(span.kind, OTHER)}"/>'
    )
    if wide >= _LEAST_LABEL and number:
        box += f'<text x="{x + wide / 2:.2f}" y="{y + 14}" text-anchor="middle" fill="white">{span.micro_batch}</text>'
    return box + "</g>"


def _axis(begin: float, end: float, scale: float, y: float) -> list[str]:
    parts = []
    for i in range(6):
        seconds = (end - begin) * i / 5
        x = _LEFT + seconds * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}" stroke="#888"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 15}" text-anchor="middle" fill="#555">{milliseconds(seconds)}</text>')
    return parts


def _legend(y: float) -> list[str]:
    parts = []
    for place, (name, colour) in enumerate([*COLOURS.items(), ("sending and receiving", OTHER)]):
        x = _LEFT + 110 * place
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{name}</text>')
    return parts


def _letter(spans: Sequence[Span], start: float, stop: float) -> str:
    """What takes most of a slice of time, or nothing."""
    used: dict[str, float] = {}
    for span in spans:
        overlap = min(span.stop_s, stop) - max(span.start_s, start)
        if overlap > 0:
            letter = LETTERS.get(span.kind, "·")
            used[letter] = used.get(letter, 0.0) + overlap
    letter = max(used, key=lambda k: used[k], default=" ")
    return letter if used and sum(used.values()) >= 0.3 * (stop - start) else " "

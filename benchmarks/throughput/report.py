"""What the cells add up to: figures, a table, a bar chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from benchmarks.picture import document
from benchmarks.throughput.cells import DDP, OURS
from benchmarks.throughput.measure import NOT_REACHED, Result

COLOURS = ("#4878a8", "#d9a441", "#8fb572", "#a05c8c", "#b9b9b9", "#c46a5a", "#5aa7a7", "#7d6b91", "#9c9c56", "#6b8e9f")
_BAR, _GAP, _LEFT, _WIDTH, _TOP = 14, 26, 210, 620, 40


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """Everything measured, in the shape {fleet: {model: value}}."""
    return {
        "cells": _by_cell(results, lambda r: {s: r.rate(s) for s in (*r.rates, *r.errors)}),
        "measured": _by_cell(
            results, lambda r: {s: [[round(x, 2) for x in m] for m in ms] for s, ms in r.rates.items()}
        ),
        "parts": _by_cell(results, lambda r: {s: r.part(s) for s in r.rates}),
        "spread": _by_cell(results, lambda r: {s: r.spread(s) for s in r.rates}),
        "errors": _by_cell(results, lambda r: r.errors),
        "ideal": _by_cell(results, lambda r: r.ideal_rate),
        "efficiency": _by_cell(results, lambda r: r.part(OURS)),
        "channels_last_gain": _by_cell(results, lambda r: r.channels_last_gain),
        "best_peer_ratio": _by_cell(results, lambda r: _ratio(r.rate(OURS), _best_other(r))),
        "best_peer_spread": _by_cell(results, _best_peer_spread),
        "ddp_ratio": _by_cell(results, lambda r: _ratio(r.rate(OURS), r.rate(DDP))),
        "predict_error": _by_cell(results, _prediction_errors),
        "plans": _by_cell(results, lambda r: {s: a["plan"] for s, a in r.plans.items()}),
        "when": _by_cell(results, lambda r: r.when),
        "oom_kills": sum(r.oom_kills for r in results),
    }


def _by_cell(results: Sequence[Result], value: Callable[[Result], Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        found.setdefault(result.cell.name, {})[result.cell.model] = value(result)
    return found


def _best_other(result: Result) -> float | None:
    """None where somebody had no turn: nobody knows who is the best then."""
    if NOT_REACHED in result.errors.values():
        return None
    return max((rate for s in result.rates if s != OURS and (rate := result.rate(s)) is not None), default=None)


def _best_peer_spread(result: Result) -> list[float] | None:
    """The smallest and the largest of ours over the best other in the same turn, by parts of the ideal.

    None where somebody lacks a turn: nobody knows then which measurements belong together.
    """
    ours, others = result.rates.get(OURS, []), [rates for s, rates in result.rates.items() if s != OURS]
    lacking = NOT_REACHED in result.errors.values() or len(ours) != len(result.when or ours)
    if lacking or not ours or not others or any(len(rates) != len(ours) for rates in others):
        return None
    turns = zip(ours, *others, strict=True)
    ratios = [mine.part / max(rate.part for rate in rest) for mine, *rest in turns]
    return [min(ratios), max(ratios)]


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _prediction_errors(result: Result) -> dict[str, float]:
    """Predicted round time over the measured one, less one, of every plan: each system's last."""
    errors = {}
    for system, answer in result.plans.items():
        rates = result.rates.get(system)
        if rates and answer["predicted_s"] is not None:
            errors[system] = answer["predicted_s"] * rates[-1].samples_per_s / result.cell.batch - 1
    return errors


def table(results: Sequence[Result], left_out: Sequence[str] = ()) -> str:
    """Samples per second of every system in every cell, as Markdown; and cells without time for them."""
    systems = list(dict.fromkeys(s for r in results for s in (*r.rates, *r.errors)))
    systems.sort(key=lambda s: s != OURS)
    lines = [f"| fleet | model | {' | '.join(systems)} | ideal | efficiency |", "|---" * (len(systems) + 4) + "|"]
    for r in results:
        best = max((rate for s in systems if (rate := r.rate(s)) is not None), default=None)
        rates = [_cell_text(r, s, best) for s in systems]
        share = r.part(OURS)
        part = "" if share is None else f"{share:.2f}"
        lines.append(f"| {r.cell.name} | {r.cell.model} | {' | '.join(rates)} | {r.ideal_rate:.1f} | {part} |")
    for cell in left_out:
        fleet, _, model = cell.partition(":")
        lines.append(f"| {fleet} | {model} | left out{' |' * (len(systems) + 2)}")
    return "\n".join(lines)


def _cell_text(result: Result, system: str, best: float | None) -> str:
    rate = result.rate(system)
    if rate is None:
        return "failed" if system in result.errors else ""
    return f"**{rate:.1f}**" if rate == best else f"{rate:.1f}"


def chart(results: Sequence[Result]) -> str:
    """Bars as an SVG document: each system's share of the ideal, cell by cell."""
    systems = list(dict.fromkeys(s for r in results for s in r.rates))
    systems.sort(key=lambda s: s != OURS)
    ideal = _WIDTH / max([1.0, *(part for r in results for s in systems if (part := r.part(s)) is not None)])
    parts, y = [], _TOP
    for r in results:
        known = [s for s in systems if r.rate(s) is not None]
        parts.append(
            f'<text x="8" y="{y + _BAR * len(known) / 2 + 4}">{escape(f"{r.cell.name} {r.cell.model}")}</text>'
        )
        for system in known:
            rate = r.rate(system) or 0.0
            width = max(1.0, rate / r.ideal_rate * ideal)
            colour = COLOURS[systems.index(system) % len(COLOURS)]
            parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" fill="{colour}"/>')
            weight = ' font-weight="bold"' if system == OURS else ""
            parts.append(f'<text x="{_LEFT + width + 5:.1f}" y="{y + 10}"{weight}>{escape(system)} {rate:.1f}</text>')
            y += _BAR
        y += _GAP
    right, bottom = round(_LEFT + ideal, 1), y - _GAP + 8
    line = f'<line x1="{right}" x2="{right}" y1="{_TOP - 8}" y2="{bottom}" stroke="#888" stroke-dasharray="4 3"/>'
    title = "Samples per second, as a share of what plain PyTorch reaches on the devices by themselves (dashed line)"
    return document(_LEFT + _WIDTH + 160, y, title, [line, *parts])

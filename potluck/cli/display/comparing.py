"""Planners side by side, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.cli.display.plan_lines import hanging, table
from potluck.simulate.outlook import Outlook
from potluck.units import milliseconds, size_text

_HEADINGS = ("planner", "round", "samples/s", "of the best", "busy", "devices", "stages", "micro-batches", "fits")
_SPARED = ("busy", "stages", "of the best")  # the first to go where lines are short


def compare_lines(
    runs: Sequence[tuple[str, Outlook | str]], bound_s: float | None, width: int | None = None
) -> list[str]:
    """Planners, best first; a text stands for one that has no plan, and says why. No plan is faster than the bound."""
    good = [(name, run) for name, run in runs if isinstance(run, Outlook)]
    ranked = sorted(good, key=lambda item: (not item[1].fits, -item[1].samples_per_s))
    best = ranked[0][1].samples_per_s if ranked and ranked[0][1].fits else None
    rows: list[Sequence[str]] = [_HEADINGS, *(_row(name, run, best) for name, run in ranked)]
    devices = max((len(run.devices) + len(run.idle) for _, run in good), default=0)
    lines = []
    if bound_s:
        lines.append(
            f"bound       no plan for these {devices} devices can take less than {milliseconds(bound_s)} a round"
        )
    lines += [f"no plan     {name}: {why}" for name, why in runs if isinstance(why, str)]
    return [*_narrowed(rows, width), *hanging(lines, width)]


def _narrowed(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The rows as a table, without what can be spared where there is no room for it."""
    spared: list[str] = []
    while True:
        kept = [place for place, heading in enumerate(_HEADINGS) if heading not in spared]
        lines = table([[row[place] for place in kept] for row in rows])
        if width is None or len(spared) == len(_SPARED) or max(len(line) for line in lines) <= width:
            return lines
        spared.append(_SPARED[len(spared)])


def _row(name: str, run: Outlook, best: float | None) -> tuple[str, ...]:
    over = max((d.missing_bytes for d in run.devices), default=0)
    plan = run.plan
    return (
        name,
        milliseconds(run.round_s),
        f"{run.samples_per_s:,.0f}",
        f"{run.samples_per_s / best:.0%}" if best else "",
        f"{run.utilisation:.0%}",
        f"{len(run.devices)} of {len(run.devices) + len(run.idle)}",
        str(len(plan.stages)),
        f"{plan.micro_batches} of {plan.micro_batch_size}",
        f"no, {size_text(over)} too few" if over else "yes",
    )

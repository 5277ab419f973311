"""Plans, simulations and comparisons as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.plan.explain import Explainer
from potluck.simulate.gantt import milliseconds
from potluck.simulate.run import DeviceRun, SimulatedRun
from potluck.types import ModelFacts
from potluck.units import size_text

_BAR = 12
_LABEL = 26


def run_lines(run: SimulatedRun, facts: ModelFacts) -> list[str]:
    """A plan with what each device does and needs, as a table with bars."""
    plan = run.plan
    lines = [
        f"a round of {plan.batch_size} samples ({plan.micro_batches} micro-batches of {plan.micro_batch_size}) takes "
        f"{milliseconds(run.round_s)}: {run.samples_per_s:,.0f} samples/s, devices busy {run.utilisation:.0%}",
        "",
    ]
    rows = [("stage", "blocks", "device", "share", "computes", "memory")]
    for device in run.devices:
        stage = plan.stages[device.stage]
        first = stage.group[0].device == device.name
        rows.append(
            (
                f"{device.stage + 1}" if first else "",
                _blocks(stage.blocks, facts) if first else "",
                device.name,
                _share(run, device),
                f"{bar(device.busy_s / run.round_s)} {device.busy_s / run.round_s:4.0%}",
                _memory(device),
            )
        )
    return lines + table(rows)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def bar(part: float, width: int = _BAR) -> str:
    """A bar that is full at 1."""
    full = round(max(0.0, min(1.0, part)) * width)
    return "█" * full + "░" * (width - full)


def reasons(explainer: Explainer) -> list[str]:
    """Why the plan is what it is."""
    lines = [f"bottleneck  {explainer.bottleneck()}"]
    lines += [f"cut         {line.removeprefix('cut ')}" for line in explainer.cuts()]
    lines += [f"share       {line}" for line in explainer.shares()]
    lines += [f"depth       {line}" for line in explainer.depths()]
    return lines


def _blocks(blocks: tuple[int, int], facts: ModelFacts) -> str:
    start, stop = blocks
    first, last = (facts.blocks[b].label.split(" … ") for b in (start, stop - 1))  # a block may itself be a range
    labels = first[0] if first[0] == last[-1] else f"{first[0]} … {last[-1]}"
    return f"{start}-{stop - 1}".ljust(6) + (labels if len(labels) <= _LABEL else labels[: _LABEL - 1] + "…")


def _share(run: SimulatedRun, device: DeviceRun) -> str:
    stage = run.plan.stages[device.stage]
    if len(stage.group) == 1:
        return "all"
    share = next(m.share for m in stage.group if m.device == device.name)
    if stage.sharing == "samples":
        return f"{share} of {run.plan.micro_batch_size} rows"
    return f"{share} of {run.plan.micro_batches} turns"


def _memory(device: DeviceRun) -> str:
    used = device.memory.total
    if not device.limit_bytes:
        return size_text(used)
    text = f"{bar(used / device.limit_bytes)} {size_text(used)} of {size_text(device.limit_bytes)}"
    return text + (f", {size_text(device.missing_bytes)} too few" if device.missing_bytes else "")


def compare_lines(runs: Sequence[tuple[str, SimulatedRun | str]]) -> list[str]:
    """Planners side by side, best first; a text stands for one that has no plan, and says why."""
    good = [(name, run) for name, run in runs if isinstance(run, SimulatedRun)]
    ranked = sorted(good, key=lambda item: (not item[1].fits, -item[1].samples_per_s))
    best = ranked[0][1].samples_per_s if ranked and ranked[0][1].fits else None
    rows = [("planner", "round", "samples/s", "of the best", "busy", "devices", "stages", "")]
    for name, run in ranked:
        over = max((d.missing_bytes for d in run.devices), default=0)
        rows.append(
            (
                name,
                milliseconds(run.round_s),
                f"{run.samples_per_s:,.0f}",
                f"{run.samples_per_s / best:.0%}" if best else "",
                f"{run.utilisation:.0%}",
                str(len(run.devices)),
                str(len(run.plan.stages)),
                f"does not fit: {size_text(over)} too few" if over else "",
            )
        )
    return table(rows) + [f"{name}: {why}" for name, why in runs if isinstance(why, str)]

"""Plans, simulations and comparisons as lines of text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from potluck.metrics.lanes import busy_part
from potluck.metrics.run_view import share_text
from potluck.plan.explain import Explainer
from potluck.simulate.outlook import DeviceRun, Outlook
from potluck.types import ModelFacts, Plan
from potluck.units import factor_text, milliseconds, size_text

_BAR = 12  # characters: a difference of a tenth is seen
_LABEL, _SHORTEST_LABEL = 26, 8
_WIDEST = 120  # columns; a wider table is harder to read, not easier
_MARGIN = 12  # where the text after a word like "bottleneck" begins


def columns() -> int | None:
    """How wide lines may be; None where there is no terminal, and programs read them."""
    found = shutil.get_terminal_size((0, 0)).columns
    return min(_WIDEST, found) if found else None


def hanging(lines: Iterable[str], width: int | None, indent: int = _MARGIN) -> list[str]:
    """The lines, those that are too long broken between words, with the rest indented."""
    if width is None:
        return list(lines)
    room = max(width, indent + 20)
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, room, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]


def run_lines(run: Outlook, facts: ModelFacts, width: int | None = None) -> list[str]:
    """A plan with what each device does and needs, as a table; with bars where there is room for them."""
    plan = run.plan
    heading = (
        f"a round of {plan.batch_size} samples ({plan.micro_batches} micro-batches of {plan.micro_batch_size}) takes "
        f"{milliseconds(run.round_s)}: {run.samples_per_s:,.0f} samples/s, devices busy {run.utilisation:.0%}"
    )
    lines = table(_rows(run, facts, bars=True, label=_LABEL))
    for label in range(_LABEL, _SHORTEST_LABEL - 1, -2):
        if width is None or max(len(line) for line in lines) <= width:
            break
        lines = table(_rows(run, facts, bars=False, label=label))
    return [*hanging([heading], width, 2), "", *lines]


def _rows(run: Outlook, facts: ModelFacts, *, bars: bool, label: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("stage", "blocks", "device", "share", "computes", "memory")]
    for device in run.devices:
        stage = run.plan.stages[device.stage]
        first = stage.group[0].device == device.name
        busy = busy_part(device.busy_s, run.round_s)
        rows.append(
            (
                f"{device.stage + 1}" if first else "",
                _blocks(stage.blocks, facts, label) if first else "",
                device.name,
                _share(run, device),
                f"{bar(busy)} {busy:4.0%}" if bars else f"{busy:8.0%}",
                _memory(device, bars),
            )
        )
    return rows


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


def code_line(run: Outlook) -> str | None:
    """What of the memory is not tensors: it is measured once for each device, and no plan changes it."""
    code = {d.name: d.memory.code for d in run.devices if d.memory.code}
    if not code:
        return None
    low, high = size_text(min(code.values())), size_text(max(code.values()))
    amount = low if low == high else f"{low} to {high}"
    return f"memory      {amount} of it on each device is code and scratch space of kernels, as measured there"


def change_words(before: Outlook | str, after: Outlook) -> str:
    """A round without a change and with it; a text says why there is none without it."""
    if isinstance(before, str):
        return f"{milliseconds(after.round_s)} a round; without the change there is no plan ({before})"
    words = f"{milliseconds(before.round_s)} → {milliseconds(after.round_s)} a round"
    if before.plan.batch_size == after.plan.batch_size:
        return (
            f"{words}, {factor_text(after.round_s / before.round_s, 'without the change')}" if before.round_s else words
        )
    rates = f"{before.samples_per_s:,.0f} → {after.samples_per_s:,.0f} samples/s"
    each = before.samples_per_s / after.samples_per_s if after.samples_per_s else 1.0
    return f"{words} of {before.plan.batch_size} → {after.plan.batch_size} samples: {rates}, " + (
        factor_text(each, "without it")
    )


def _blocks(blocks: tuple[int, int], facts: ModelFacts, wide: int) -> str:
    start, stop = blocks
    first, last = (facts.blocks[b].label.split(" … ") for b in (start, stop - 1))  # a block may itself be a range
    labels = first[0] if first[0] == last[-1] else f"{first[0]} … {last[-1]}"
    return span_text(blocks).ljust(6) + (labels if len(labels) <= wide else labels[: wide - 1] + "…")


def span_text(blocks: tuple[int, int]) -> str:
    """Blocks of a half-open range for people: "0-5", or "4"."""
    return f"{blocks[0]}-{blocks[1] - 1}" if blocks[1] - blocks[0] > 1 else f"{blocks[0]}"


def shape_text(plan: Plan) -> str:
    """Who runs which blocks, in one line."""
    return " | ".join(f"{'+'.join(m.device for m in s.group)} {span_text(s.blocks)}" for s in plan.stages)


def _share(run: Outlook, device: DeviceRun) -> str:
    stage = run.plan.stages[device.stage]
    if len(stage.group) == 1:
        return "all"
    return share_text(run.plan, device.stage, next(m.share for m in stage.group if m.device == device.name))


def _memory(device: DeviceRun, bars: bool) -> str:
    used = device.memory.total
    if not device.limit_bytes:
        return size_text(used)
    text = f"{size_text(used)} of {size_text(device.limit_bytes)}"
    if bars:
        text = f"{bar(used / device.limit_bytes)} {text}"
    return text + (f", {size_text(device.missing_bytes)} too few" if device.missing_bytes else "")

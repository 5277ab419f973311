"""What each device of a run around a parameter server came to, as a small table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from potluck.metrics.device_folds import DevicePart, device_parts
from potluck.metrics.records import RECORDS, read

_HEAD = ("own samples", "trained", "pushes", "left out", "loss", "held-out loss")


def parts_of(run_dir: Path) -> dict[str, DevicePart]:
    """Of a run, by its folder; nothing where none was trained around a parameter server."""
    path = run_dir / RECORDS
    return device_parts(read(path)) if path.is_file() else {}


def device_lines(parts: Mapping[str, DevicePart], name: str) -> list[str]:
    """A line for each device under a heading that begins with `name`; a column that nobody needs is left out."""
    rows = [_cells(part) for part in parts.values()]
    shown = [column for column in range(len(_HEAD)) if any(row[column] for row in rows)]
    if not shown:
        return []
    widths = {column: max(len(_HEAD[column]), *(len(row[column]) for row in rows)) for column in shown}
    devices = [f"  {device}" for device in parts]
    wide = max(map(len, (name, *devices)))
    lines = [(name, _HEAD), *zip(devices, rows, strict=True)]
    return [
        "  ".join([first.ljust(wide), *((cells[column] or "-").rjust(widths[column]) for column in shown)])
        for first, cells in lines
    ]


def _cells(part: DevicePart) -> tuple[str, ...]:
    return (
        _number(part.samples),
        _number(part.trained),
        _number(part.pushes),
        _number(part.left_out),
        _loss(part.loss),
        _loss(part.held_out_loss),
    )


def _number(value: int | None) -> str:
    return f"{value:,}" if value else ""


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"

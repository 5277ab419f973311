"""What every picture of a benchmark begins and ends with."""

from __future__ import annotations

from collections.abc import Iterable


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """An SVG document of so many units, with a title and whatever is drawn below it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="20" font-size="14">{title}</text>'
    )
    return "\n".join([head, *parts, "</svg>", ""])

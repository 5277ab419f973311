"""Print files and functions that outgrew the budget; fail only far beyond it.

Above the soft limit a file or function is named, so that its next change can think of splitting it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("potluck", "benchmarks", "examples", "tests", "tools")


class Limit(NamedTuple):
    """How many lines are fine, and how many fail the check."""

    soft: int
    hard: int


FILE = Limit(soft=300, hard=500)
FUNCTION = Limit(soft=40, hard=100)


class Size(NamedTuple):
    """A file or function, and its length."""

    place: str
    lines: int
    limit: Limit


def sizes(path: Path) -> Iterator[Size]:
    """Yield the size of a file and of every function in it."""
    source = path.read_text(encoding="utf-8")
    yield Size(str(path), len(source.splitlines()), FILE)
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Size(
                f"{path}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1, FUNCTION
            )


def main(roots: list[str]) -> int:
    """Print the offenders, longest first, and return 1 if one is beyond its hard limit."""
    files = sorted(p for root in roots for p in Path(root).rglob("*.py"))
    offenders = [s for path in files for s in sizes(path) if s.lines > s.limit.soft]
    beyond = [s for s in offenders if s.lines > s.limit.hard]
    for size in sorted(offenders, key=lambda s: s.lines / s.limit.soft, reverse=True):
        verdict = f"over the hard limit of {size.limit.hard}" if size in beyond else f"budget {size.limit.soft}"
        print(f"{size.place}: {size.lines} lines ({verdict})")
    print(f"size budget: {len(files)} files, {len(offenders)} over budget, {len(beyond)} over the hard limit")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(FOLDERS)))

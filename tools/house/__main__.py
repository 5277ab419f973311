"""Measures the house, prints what is in the way, and fails if a limit is broken."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.house.annotations import typed
from tools.house.graph import import_rules
from tools.house.limits import LIMITS, NOT_YET, judge
from tools.house.measure import Measure
from tools.house.names import names_twice
from tools.house.rooms import room_docstrings, room_sizes
from tools.house.sizes import file_lengths, function_lengths, over_budget
from tools.house.source import Project, read
from tools.house.tested import untested_files

ALL = (room_sizes, room_docstrings, import_rules, names_twice, file_lengths, function_lengths, untested_files, typed)


def measure(project: Project) -> list[Measure]:
    """Everything there is to measure."""
    return [found for each in ALL for found in each(project)]


def broken(measures: Sequence[Measure], not_yet: Mapping[str, float]) -> list[str]:
    """The limits that are broken."""
    return [m.key for m in measures if m.key in LIMITS and not judge(m.key, m.size, not_yet).passes]


def offences(measures: Sequence[Measure]) -> Iterator[str]:
    """A line for each place that keeps a limit from being met."""
    for found in measures:
        if found.key in LIMITS and not LIMITS[found.key].allows(found.size):
            yield from (f"{line} [{found.key}]" for line in found.offences)


def table(measures: Sequence[Measure], not_yet: Mapping[str, float]) -> Iterator[str]:
    """A row for each number: what it is, what it may be, and whether that is so."""
    for found in measures:
        if found.key in LIMITS:
            verdict = judge(found.key, found.size, not_yet).words
            yield f"{found.key:28}{found.size:>8g}   {LIMITS[found.key]!s:16}{verdict}"
        else:
            yield f"{found.key:28}{found.size:>8g}"


def main(arguments: Sequence[str], root: Path, package: str = "potluck") -> int:
    """Print the report on the project in `root`, and return 1 if a limit is broken."""
    project = read(root, package)
    measures = measure(project)
    if "--json" in arguments:
        print(json.dumps({found.key: found.value for found in measures}, indent=1))
    else:
        print(*over_budget(project), *offences(measures), *table(measures, NOT_YET), sep="\n")
    return 1 if broken(measures, NOT_YET) else 0


if __name__ == "__main__":
    gc.disable()  # nothing is dropped before the end, and looking for it took most of the time
    sys.exit(main(sys.argv[1:], Path()))

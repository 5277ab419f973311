"""How long files and functions are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from tools.house.limits import LIMITS, SOFT_FILE, SOFT_FUNCTION
from tools.house.measure import Measure
from tools.house.source import Project, Source, functions

LONGEST = 10  # functions or files named when a limit on all of them is missed
SOFTLY = "think of splitting it at its next change"


class Length(NamedTuple):
    """A file or function, and how many lines it has."""

    place: str
    lines: int


def file_lengths(project: Project) -> Iterator[Measure]:
    """How long files are. An `__init__` is no file for the median: empty ones would flatter it."""
    inside = [Length(source.path, source.lines) for source in project.inside]
    counted = [Length(source.path, source.lines) for source in project.inside if source.name != "__init__"]
    around = [Length(source.path, source.lines) for source in project.around]
    yield Measure("package_lines", sum(file.lines for file in inside), [])
    yield _longest("max_file", inside)
    yield _longest("max_file_around", around)
    yield Measure("median_file", median([file.lines for file in counted] or [0]), _worst(counted))


def function_lengths(project: Project) -> Iterator[Measure]:
    """How long functions are: nine of ten in the package, and the longest anywhere."""
    inside = [length for source in project.inside for length in _functions(source)]
    around = [length for source in project.around for length in _functions(source)]
    yield Measure("p90_function", nine_of_ten([length.lines for length in inside]), _worst(inside))
    yield _longest("max_function", inside + around)


def over_budget(project: Project) -> list[str]:
    """A line for each file and function whose next change should think of splitting it."""
    sources = project.inside + project.around
    files = [Length(source.path, source.lines) for source in sources]
    lengths = [length for source in sources for length in _functions(source)]
    return [*_longer_than(SOFT_FILE, files, SOFTLY), *_longer_than(SOFT_FUNCTION, lengths, SOFTLY)]


def nine_of_ten(lines: Sequence[int]) -> int:
    """The length that nine of ten do not exceed."""
    return sorted(lines)[(9 * len(lines) - 1) // 10] if lines else 0


def _functions(source: Source) -> Iterator[Length]:
    for node in functions(source):
        yield Length(f"{source.path}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)


def _longest(key: str, lengths: Sequence[Length]) -> Measure:
    return Measure(key, max((length.lines for length in lengths), default=0), _longer_than(LIMITS[key].bound, lengths))


def _longer_than(most: float, lengths: Iterable[Length], advice: str = "split it") -> list[str]:
    longer = sorted((length for length in lengths if length.lines > most), key=lambda length: -length.lines)
    return [f"{length.place}: {length.lines} lines; {advice} (at most {most:g})" for length in longer]


def _worst(lengths: Iterable[Length]) -> list[str]:
    longest = sorted(lengths, key=lambda length: -length.lines)[:LONGEST]
    return [f"{length.place}: {length.lines} lines; split it, it is among the longest" for length in longest]

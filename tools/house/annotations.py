"""How many parameters and results of functions have a type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tools.house.measure import Measure
from tools.house.source import Function, Project, Source, functions


class Slot(NamedTuple):
    """A parameter or result, and whether it has a type."""

    place: str
    typed: bool


def typed(project: Project) -> Iterator[Measure]:
    """The fraction of parameters and results that have a type; `self` and `cls` need none."""
    slots = [slot for source in project.inside for slot in _slots(source)]
    bare = [f"{slot.place} has no type; write one" for slot in slots if not slot.typed]
    yield Measure("typed", round(1 - len(bare) / len(slots), 5) if slots else 1.0, bare)


def _slots(source: Source) -> Iterator[Slot]:
    for function in functions(source):
        for parameter in _parameters(function):
            yield Slot(f"{source.path}:{parameter.lineno}: {parameter.arg}", parameter.annotation is not None)
        yield Slot(f"{source.path}:{function.lineno}: the result of {function.name}", function.returns is not None)


def _parameters(function: Function) -> list[ast.arg]:
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    if positional and positional[0].arg in ("self", "cls"):
        positional = positional[1:]
    return [*positional, *spec.kwonlyargs, *(arg for arg in (spec.vararg, spec.kwarg) if arg)]

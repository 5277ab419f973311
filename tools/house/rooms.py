"""How full each room is, and whether it says what lives in it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tools.house.limits import LIMITS
from tools.house.measure import Measure
from tools.house.source import Project


def room_sizes(project: Project) -> Iterator[Measure]:
    """How many files each room holds, and how many the fullest one does."""
    rooms = Counter({source.room: 0 for source in project.inside})
    rooms.update(source.room for source in project.inside if source.name != "__init__")
    most = LIMITS["largest_room"].bound
    full = [f"{_folder(room)}: {n} files; move some into rooms of their own" for room, n in rooms.items() if n > most]
    yield Measure("rooms", dict(sorted(rooms.items())), [])
    yield Measure("largest_room", max(rooms.values(), default=0), full)


def room_docstrings(project: Project) -> Iterator[Measure]:
    """The rooms that do not say what they are for."""
    said = {source.room for source in project.inside if source.name == "__init__" and ast.get_docstring(source.tree)}
    silent = sorted({source.room for source in project.inside} - said)
    say = "write a docstring: what lives here, and what it may import"
    yield Measure("room_docstrings", silent, [f"{_folder(room)}__init__.py:1: {say}" for room in silent])


def _folder(room: str) -> str:
    return room.replace(".", "/") + "/"

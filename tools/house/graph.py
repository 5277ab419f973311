"""Who imports whom: nothing leads from one process to the other, and nothing leads in a circle.

Imports inside functions count, those for type checkers do not. import-linter brings grimp along.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import grimp

from tools.house.measure import Measure
from tools.house.source import Project

HOUSES = ("device", "coordinator")

Edges = Mapping[str, set[str]]
Paths = Mapping[str, str]  # of a module, its file


def import_rules(project: Project) -> Iterator[Measure]:
    """Chains of imports between the two houses, and circles of imports."""
    graph = _graph(project)
    paths = {source.module: source.path for source in project.inside}
    houses = [f"{project.package}.{name}" for name in HOUSES]
    missing = [house for house in houses if house not in graph.modules]
    chains = [] if missing else [chain for pair in permutations(houses) for chain in _chains(graph, *pair)]
    edges = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    circles = [*_circles(edges), *_circles_of_packages(edges)]
    build = "is not there; build it, or name it anew in HOUSES"
    yield Measure("houses_missing", missing, [f"{house} {build}" for house in missing])
    yield Measure("device_coordinator_imports", len(chains), [_chain_line(graph, paths, chain) for chain in chains])
    yield Measure("import_cycles", len(circles), [_circle_line(graph, paths, circle) for circle in circles])


def _graph(project: Project) -> grimp.ImportGraph:
    """The package's import graph, of the files under the project's root and no installed ones."""
    sys.path.insert(0, str(project.root.resolve()))
    try:
        return grimp.build_graph(project.package, exclude_type_checking_imports=True, cache_dir=None)
    finally:
        sys.path.pop(0)


def _chains(graph: grimp.ImportGraph, importer: str, imported: str) -> list[tuple[str, ...]]:
    return sorted(graph.find_shortest_chains(importer=importer, imported=imported, as_packages=True))


def _chain_line(graph: grimp.ImportGraph, paths: Paths, chain: Sequence[str]) -> str:
    way = " -> ".join(chain)
    return f"{_place(graph, paths, chain[0], chain[1])}: {way}; move what both houses need to where neither lives"


def _circle_line(graph: grimp.ImportGraph, paths: Paths, circle: Sequence[str]) -> str:
    """Names the circle, and the first import that is part of it."""
    inside = {name: graph.find_descendants(name) | {name} for name in circle}
    others = set().union(*inside.values()) - inside[circle[0]]
    importer, imported = min(
        (module, other)
        for module in inside[circle[0]]
        for other in graph.find_modules_directly_imported_by(module) & others
    )
    place = _place(graph, paths, importer, imported)
    return f"{place}: {', '.join(circle)} import each other in a circle; move what they share below them"


def _place(graph: grimp.ImportGraph, paths: Paths, importer: str, imported: str) -> str:
    return f"{paths[importer]}:{graph.get_import_details(importer=importer, imported=imported)[0]['line_number']}"


def _circles(edges: Edges) -> list[list[str]]:
    """The groups of more than one name that all lead to each other."""
    reach = {name: _reached(edges, name) for name in edges}
    circles = {frozenset(other for other in reach[name] if name in reach[other]) for name in edges}
    return sorted(sorted(circle) for circle in circles if len(circle) > 1)


def _circles_of_packages(edges: Edges) -> list[list[str]]:
    """Circles between what lies beside each other in a package, where at least one of them is itself a package."""
    packages = {name.rpartition(".")[0] for name in edges}
    beside: dict[str, dict[str, set[str]]] = defaultdict(dict)
    pairs = [(importer, imported) for importer, found in edges.items() for imported in found]
    for importer, imported in pairs:
        parent, pair = _siblings(importer, imported)
        if pair:
            beside[parent].setdefault(pair[0], set()).add(pair[1])
            beside[parent].setdefault(pair[1], set())
    circles = [circle for parent in sorted(beside) for circle in _circles(beside[parent])]
    return [circle for circle in circles if packages & set(circle)]


def _siblings(importer: str, imported: str) -> tuple[str, tuple[str, str] | None]:
    """The package where two modules part, and their ancestors directly in it; none if one holds the other."""
    one, other = importer.split("."), imported.split(".")
    depth = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if depth is None:
        return "", None
    return ".".join(one[:depth]), (".".join(one[: depth + 1]), ".".join(other[: depth + 1]))


def _reached(edges: Edges, start: str) -> set[str]:
    reached: set[str] = {start}
    waiting: list[str] = [start]
    while waiting:
        new = edges[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached

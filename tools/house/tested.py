"""Which modules no quick test imports: they only ever run inside whole processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tools.house.measure import Measure
from tools.house.source import Project, Source, imports, is_trivial, statements

QUICK = ("tests/unit/", "tests/equality/")


def untested_files(project: Project) -> Iterator[Measure]:
    """The modules that nothing under `QUICK` imports by name, nor a helper in tests/ that those import."""
    imported = _imported_by_tests(project)
    untested = [source.path for source in project.inside if source.module not in imported and not is_trivial(source)]
    lines = [f"{path}:1: imported by no test under {' or '.join(QUICK)}; write one" for path in untested]
    yield Measure("untested_files", untested, lines)


def _imported_by_tests(project: Project) -> set[str]:
    """Every name that the quick tests import, and of a name that a package passes on, where it is from."""
    helpers = {source.module: source for source in project.around if source.path.startswith("tests/")}
    waiting = [source for source in helpers.values() if source.path.startswith(QUICK)]
    seen: set[str] = set()
    names: set[str] = set()
    while waiting:
        source = waiting.pop()
        if source.module not in seen:
            seen.add(source.module)
            new = set(imports(source))
            names |= new
            waiting += [helpers[name] for name in new if name in helpers]
    passed_on = _passed_on(project.inside)
    return names | {passed_on[name] for name in names if name in passed_on}


def _passed_on(sources: tuple[Source, ...]) -> Mapping[str, str]:
    """Names that an `__init__` passes on, also those it imports only for type checkers, with their module."""
    return {
        f"{source.module}.{alias.asname or alias.name}": node.module
        for source in sources
        if source.name == "__init__"
        for node in statements(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

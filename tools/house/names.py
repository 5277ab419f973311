"""Names that mean two things: a class or type in two modules, a file name in two packages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tools.house.measure import Measure
from tools.house.source import Project, Source, statements

EVERYWHERE = {"messages", "events", "process", "__init__", "__main__"}
VERB_ROOMS = {"commands", "cli"}  # `commands/plan.py` is the verb, `plan/` what it does

_TYPE_NAME = re.compile(r"[A-Z]\w*[a-z]\w*")  # constants are all upper case, variables all lower case


class Use(NamedTuple):
    """Where a name is given."""

    name: str
    module: str
    place: str


def names_twice(project: Project) -> Iterator[Measure]:
    """The names that two modules give, and the module names that two packages give."""
    types = _twice(use for source in project.inside for use in _type_names(source))
    modules = {name: uses for name, uses in _twice(_module_names(project.inside)).items() if _clash(uses)}
    lines = [*_lines(types), *_lines(modules)]
    yield Measure("names_twice", sorted(types) + sorted(modules), lines)


def _type_names(source: Source) -> Iterator[Use]:
    """Public classes, and what is assigned to a name written as one: aliases, `NewType`, made enums and tuples."""
    for statement in _top_level(source.tree):
        for name in _given(statement):
            yield Use(name, source.module, f"{source.path}:{statement.lineno}")


def _given(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef):
        return [] if statement.name.startswith("_") else [statement.name]
    if _is_type_variable(statement):
        return []
    if isinstance(statement, ast.Assign):
        names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        names = [statement.target.id]
    else:
        names = []
    return [name for name in names if _TYPE_NAME.fullmatch(name)]


def _is_type_variable(statement: ast.stmt) -> bool:
    """Whether it makes a name that stands for a type only where it is used."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("TypeVar", "ParamSpec"))


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, also those under a top-level `if` or `try`."""
    return (node for node in statements(tree, skip=_closed) if isinstance(node, ast.stmt))


def _closed(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt) and not isinstance(node, ast.If | ast.Try)


def _module_names(sources: Iterable[Source]) -> Iterator[Use]:
    """Files and packages by their last name; of a package, its folder is the place."""
    for source in sources:
        if source.name not in EVERYWHERE:
            yield Use(source.name, source.module, f"{source.path}:1")
    for room in sorted({source.room for source in sources}):
        if (name := room.rpartition(".")[2]) not in EVERYWHERE:
            yield Use(name, room, room.replace(".", "/") + "/")


def _clash(uses: list[Use]) -> bool:
    """Whether the name means two things.

    A verb may be called like the package that does it, not like another file; a package's main file like the package.
    """
    uses = [use for use in uses if use.module.split(".")[-2:] != [use.name] * 2]
    files = [use for use in uses if not use.place.endswith("/")]
    others = [use for use in files if not VERB_ROOMS & set(use.module.split(".")[1:-1])]
    return len(files) > 1 or len(uses) - len(files) > 1 or bool(others)


def _twice(uses: Iterable[Use]) -> Mapping[str, list[Use]]:
    by_name: dict[str, dict[str, Use]] = defaultdict(dict)
    for use in uses:
        by_name[use.name].setdefault(use.module, use)
    return {name: list(modules.values()) for name, modules in by_name.items() if len(modules) > 1}


def _lines(found: Mapping[str, list[Use]]) -> Iterator[str]:
    for name, uses in sorted(found.items()):
        first, *others = (use.place for use in uses)
        yield f"{first}: {name} is also at {', '.join(others)}; keep one, or give the others names of their own"

"""The Python files of the project, read and parsed once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ELSEWHERE = ("benchmarks", "examples", "tests", "tools")

Function = ast.FunctionDef | ast.AsyncFunctionDef

_ELSE = ("orelse",)
_BLOCKS = ("body", *_ELSE, "finalbody", "handlers", "cases")  # the fields of a node that hold statements


class Source(NamedTuple):
    """One file: where it is, what it is imported as, and what is in it."""

    path: str
    module: str  # of an `__init__`: its package
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return Path(self.path).stem

    @property
    def room(self) -> str:
        """The package that holds the file."""
        return ".".join(Path(self.path).parent.parts)


class Project(NamedTuple):
    """The package and what stands around it."""

    root: Path
    package: str
    inside: tuple[Source, ...]
    around: tuple[Source, ...]


def read(root: Path, package: str) -> Project:
    """The project in folder `root`."""
    around = tuple(source for folder in ELSEWHERE for source in _sources(root, folder))
    return Project(root, package, tuple(_sources(root, package)), around)


def is_trivial(source: Source) -> bool:
    """Whether there is nothing to test: the file has only a docstring, or is the `-m` entry."""
    code = source.tree.body[1:] if ast.get_docstring(source.tree) is not None else source.tree.body
    return not code or source.name == "__main__"


def imports(source: Source) -> Iterator[str]:
    """Every dotted name imported anywhere when the code runs; `from a import b` yields `a` and `a.b`."""
    for node in statements(source.tree, skip=_only_for_types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(source: Source) -> Iterator[Function]:
    """Every function and method, also those inside others."""
    return (node for node in statements(source.tree) if isinstance(node, Function))


def statements(tree: ast.AST, skip: Callable[[ast.AST], bool] = lambda node: False) -> Iterator[ast.AST]:
    """Every statement, however deep; of one to skip, only its `else`. Expressions are most of a tree, and left out."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in _ELSE if skip(node) else _BLOCKS:
            block = getattr(node, field, None)
            waiting += block if isinstance(block, list) else []


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _sources(root: Path, folder: str) -> Iterator[Source]:
    for path in sorted((root / folder).rglob("*.py")):
        inside = path.relative_to(root)
        parts = inside.with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Source(str(inside), module, len(text.splitlines()), ast.parse(text, filename=str(path)))

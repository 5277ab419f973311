"""The command by which potluck was called, so that the commands it shows work where the user is."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePath

_NAME = "potluck"


def command(*arguments: str | Path) -> str:
    """A command line of this potluck with these arguments."""
    return shlex.join([*called_by(sys.argv[0], sys.executable, Path.cwd(), shutil.which), *map(str, arguments)])


def called_by(script: str, python: str, folder: Path, which: Callable[[str], str | None]) -> list[str]:
    """The words before the verb: for a script of that name, for `python -m potluck`, or from somebody's own program."""
    match PurePath(script).name:
        case "__main__.py":
            return [_shortest(python, folder, which), "-m", _NAME]
        case "potluck":
            return [_shortest(script, folder, which)]
        case _:
            return [_NAME]


def _shortest(program: str, folder: Path, which: Callable[[str], str | None]) -> str:
    """The name alone, if that finds the same program; else its path, from the current folder if it is in there."""
    path, found = Path(os.path.abspath(program)), which(PurePath(program).name)
    if found is not None and Path(os.path.abspath(found)) == path:
        return path.name
    if not path.is_relative_to(folder):
        return str(path)
    within = path.relative_to(folder)
    return str(within) if len(within.parts) > 1 else f"./{within}"

"""Code that others add to potluck, without touching it: schedules, codecs, push policies, planners, metrics sinks.

An extension is a module that registers something when it is imported (docs/extending.md). The owner of a machine
decides what runs there: extensions are named in its environment or installed as packages. No message can load one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from potluck.advice import mending, one_line
from potluck.errors import InputError, PotluckError

VARIABLE = "POTLUCK_EXTENSIONS"  # names of modules and paths of .py files, separated by commas
GROUP = "potluck.extensions"  # of entry points of installed packages

_NOT_THERE = "give modules or .py files, separated by commas"
_REPAIR = "repair it; POTLUCK_DEBUG=1 shows where"


def load_extensions(environment: Mapping[str, str] = os.environ) -> None:
    """Imports every extension of this machine that has not been imported yet."""
    for entry in entry_points(group=GROUP):
        of = f" of {entry.dist.name}" if entry.dist is not None else ""
        _tried(entry.load, f"extension {entry.name!r}{of}", "repair or uninstall that package")
    for named in environment.get(VARIABLE, "").split(","):
        if name := named.strip():
            _tried(_importer(name), f"{VARIABLE}: {name!r}", _REPAIR, name)


def _importer(name: str) -> Callable[[], object]:
    if name.endswith(".py"):
        return lambda: _from_file(Path(name).expanduser().resolve())
    return lambda: importlib.import_module(name)


def _tried(load: Callable[[], object], what: str, fix: str, named: str = "") -> None:
    try:
        load()
    except PotluckError as error:  # what it registers is refused, and why says what to do
        raise InputError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:  # an extension may fail in any way
        why = one_line(error)
        raise InputError(f"{what} cannot be imported ({why}); {(named and _mending(error, named)) or fix}") from error


def _mending(error: BaseException, named: str) -> str:
    """What to do where something is not there: the extension itself, or a module that it imports; "" else."""
    if isinstance(error, FileNotFoundError) and named.endswith(".py") and not Path(named).expanduser().exists():
        return _NOT_THERE
    if not isinstance(error, ModuleNotFoundError):
        return ""
    itself = error.name is not None and f"{named}.".startswith(f"{error.name}.")
    return _NOT_THERE if itself else mending(str(error), "")


def _from_file(file: Path) -> None:
    """Two files of one name are two modules."""
    name = f"potluck_extension_{file.stem}_{zlib.crc32(bytes(file)):08x}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise

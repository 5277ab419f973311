"""Folders of runs: a fresh name for the next one, made when it begins, and gone again if nothing came of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from potluck.errors import InputError

MODEL = "model.safetensors"  # the last one of a run


def new_run_dir(parent: Path) -> Path:
    """A fresh name under `parent`: by date and time, with a number where two runs start in the same second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        if not path.exists():
            return path
    raise InputError(f"{parent}: too many runs in one second; give --run-dir")


def make(path: Path) -> tuple[Path, ...]:
    """Makes a folder and the parents it lacks; returns those that were made, the innermost first."""
    missing = tuple(takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made ({error.strerror}); give another --run-dir") from None
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes folders, the innermost first, as far as nothing is in them."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()

"""Files that a verb is asked to write: whether that will do is known before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path

from potluck.errors import InputError


def check_writable(path: Path, flag: str, *, replaced: bool = False) -> None:
    """Raises, naming the flag, unless a regular file is or can be there; `replaced`: missing folders are made,
    and the file is not written in place, so that a symbolic link would be lost."""
    why = _obstacle(path, replaced)
    if why is not None:
        raise InputError(f"{flag}: {path} cannot be written ({why}); give another file")


def _obstacle(path: Path, replaced: bool) -> str | None:
    try:
        if path.is_dir():
            return "Is a directory"
        if replaced and path.is_symlink():
            return "it is a symbolic link"
        if path.exists() and not path.is_file():
            return "it is no regular file"
        folder = path.parent
        while replaced and not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            return "Not a directory" if folder.exists() else "No such file or directory"
        must_be = folder if replaced or not path.exists() else path
        return None if os.access(must_be, os.W_OK) else "Permission denied"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def write_text(path: Path, text: str, flag: str) -> None:
    """Writes a file of the user's; an InputError names the flag."""
    check_writable(path, flag)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{flag}: {path} cannot be written ({error.strerror}); give another file") from None

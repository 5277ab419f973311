"""Text that every machine with Python already has: the standard library's own source, for language models."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from potluck.errors import InputError

_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})


def stdlib_text(max_bytes: int) -> bytes:
    """Return the first `max_bytes` bytes of the standard library's .py files, folder by folder in name order.

    The same for one version of Python; other versions have other text. Test code is left out: it is repetitive.
    """
    if max_bytes < 1:
        raise InputError(f"stdlib_text: max_bytes {max_bytes}; give at least 1")
    root = Path(sysconfig.get_path("stdlib"))
    parts: list[bytes] = []
    size = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - _SKIPPED)  # in place: tells the walk where to go, and in which order
        for name in sorted(f for f in files if f.endswith(".py")):
            parts.append(Path(folder, name).read_bytes())
            size += len(parts[-1])
            if size >= max_bytes:
                return b"".join(parts)[:max_bytes]
    raise InputError(f"stdlib_text: {root} holds only {size} bytes of source; ask for at most that many")

"""A Python of its own for each peer: its versions and ours do not go together. Made once, in the checkout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.throughput.measure import say

PACKAGES = {"flower": "flwr==1.38.0", "hivemind": "hivemind==1.1.12"}
SHARED = ("torch==2.13.0", "numpy")
INSTALL_S = 900.0
_ROOT = Path(__file__).parents[2]


class PeerMissing(Exception):
    """It could not be installed."""


def peer_python(peer: str, root: Path = _ROOT) -> Path:
    """The Python that has a peer."""
    folder = root / f".{peer}"
    ready, python = folder / ".ready", folder / "bin" / "python"
    wanted = "\n".join((PACKAGES[peer], *SHARED))
    if ready.exists() and ready.read_text() == wanted:
        return python
    say(f"installing {PACKAGES[peer]} into {folder}, once; this takes minutes")
    for command in _commands(peer, folder, python):
        try:
            subprocess.run(command, check=True, timeout=INSTALL_S, capture_output=True, text=True)
        except (subprocess.SubprocessError, OSError) as error:
            raise PeerMissing(f"{' '.join(command)}: {_why(error)}; leave it out with --peer none") from None
    ready.write_text(wanted)
    return python


def _commands(peer: str, folder: Path, python: Path) -> Iterator[Sequence[str]]:
    yield [sys.executable, "-m", "venv", "--clear", str(folder)]
    yield [str(python), "-m", "pip", "install", "-q", PACKAGES[peer], *SHARED]


def _why(error: Exception) -> str:
    said = getattr(error, "stderr", None) or ""
    lines = [line for line in str(said).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

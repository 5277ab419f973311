"""The log of a detached run: what its process would have said to a terminal."""

from __future__ import annotations

from pathlib import Path

LOG = "coordinator.log"
_LAST_BYTES = 64 * 1024  # in which everything worth repeating is
_COMPLAINT = "potluck: "


def last_lines(run_dir: Path, after: int = 0) -> list[str]:
    """The last lines of the log that are not empty, of those from a byte on; none where there is no log."""
    try:
        with (run_dir / LOG).open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(after, end - _LAST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def last_line(run_dir: Path, after: int = 0) -> str:
    """The last thing that was said, or nothing."""
    return next(reversed(last_lines(run_dir, after)), "")


def complaint(run_dir: Path, after: int = 0) -> str:
    """The line about what went wrong, without its prefix, or nothing."""
    lines = reversed(last_lines(run_dir, after))
    return next((line.removeprefix(_COMPLAINT) for line in lines if line.startswith(_COMPLAINT)), "")

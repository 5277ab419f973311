"""How far each measure may go, and which limits are not met yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Limit(NamedTuple):
    """The most a measure may be, or the least."""

    bound: float
    least: bool = False

    def allows(self, size: float) -> bool:
        """Whether `size` keeps the limit."""
        return size >= self.bound if self.least else size <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.least else 'at most'} {self.bound:g}"


# Of a list, its length is limited.
LIMITS: dict[str, Limit] = {
    "largest_room": Limit(20),
    "houses_missing": Limit(0),
    "device_coordinator_imports": Limit(0),
    "import_cycles": Limit(0),
    "names_twice": Limit(0),
    "max_file": Limit(400),
    "median_file": Limit(120),
    "p90_function": Limit(20),
    "max_file_around": Limit(500),
    "max_function": Limit(100),
    "untested_files": Limit(0),
    "typed": Limit(0.999, least=True),
    "room_docstrings": Limit(0),
}

# A ratchet: limits that do not hold yet, and how far they are missed today. Lower them, delete them; never raise them.
NOT_YET: dict[str, float] = {}

# Whoever changes a file or function longer than this thinks of splitting it; nothing fails.
SOFT_FILE = 300
SOFT_FUNCTION = 40


class Verdict(NamedTuple):
    """Whether a measure passes, and the words for it."""

    passes: bool
    words: str


def judge(key: str, size: float, not_yet: Mapping[str, float]) -> Verdict:
    """What becomes of a measure with this size."""
    limit = LIMITS[key]
    if limit.allows(size):
        return Verdict(True, "ok, delete it from NOT_YET" if key in not_yet else "ok")
    if key not in not_yet:
        return Verdict(False, "BROKEN")
    today = limit._replace(bound=not_yet[key])
    if not today.allows(size):
        return Verdict(False, f"BROKEN, was {today.bound:g}")
    return Verdict(True, "not yet" if size == today.bound else f"not yet, set it to {size:g} in NOT_YET")

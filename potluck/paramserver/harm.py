"""Updates that would do harm: not finite, or out of all proportion to what others push. Pure."""

from __future__ import annotations

import math
import statistics
from collections import deque

_REMEMBERED = 8  # norms of each worker: what is usual now, and not at the beginning
_TOO_LARGE = 1000.0  # times the usual norm of the others: far more than other data make of it
_JURY = 2  # others at least: of two that differ, who knows which is wrong?


class Norms:
    """Sizes of recent updates, by worker, for each step that went into them."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}

    def harm(self, worker: str, norm: float, steps: int) -> str:
        """Why an update must not be applied, in words; "" if it may. One that may is remembered."""
        if not math.isfinite(norm):
            return f"the update of {worker} is not finite; look at its data and its learning rate"
        each = norm / max(1, steps)
        others = [statistics.median(known) for name, known in self._recent.items() if name != worker and known]
        usual = statistics.median(others) if len(others) >= _JURY else 0.0
        if usual > 0 and each > _TOO_LARGE * usual:
            times = f"{each / usual:.0f} times as large as that of the others"
            return f"the update of {worker} is {times}; look at its data and its learning rate"
        self._recent.setdefault(worker, deque(maxlen=_REMEMBERED)).append(each)
        return ""

    def left(self, worker: str) -> None:
        self._recent.pop(worker, None)


def misfit(worker: str, dtype: object, size: int) -> str:
    """Why an update must not be applied that is not of so many numbers of this type."""
    kind = str(dtype).removeprefix("torch.")
    return f"the update of {worker} is not of {size} {kind}; it trains another model than the server"

"""What copies cost: rounds during which one was under way against the quiet ones of the same run.

Two runs of a quarter of a minute differ by more than copies cost; rounds of one run share the machine as it was then.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.recovery.session import Outcome

WARM_UP = 2  # rounds


@dataclass(frozen=True)
class Protection:
    """How much dearer training is with copies than without, as parts of it."""

    cpu: float
    time: float
    copies: int
    quiet_rounds: int


def protection(outcome: Outcome) -> Protection | None:
    """None where there were no copies, or no rounds without."""
    if not outcome.copies or outcome.losses:
        return None
    last = outcome.copies[-1]
    ends = [outcome.began_s + c.at_s for c in outcome.copies]
    begins = [end - c.seconds for end, c in zip(ends, outcome.copies, strict=True)]
    quiet: list[tuple[float, float]] = []  # CPU seconds and seconds of each
    during: list[tuple[float, float]] = []
    both = list(zip(outcome.committed_s, outcome.cpu_s, strict=False))[WARM_UP:]
    for (began_s, cpu_before), (ended_s, cpu_after) in pairwise(both):
        if any(began_s < end and ended_s > begin for begin, end in zip(begins, ends, strict=True)):
            during.append((cpu_after - cpu_before, ended_s - began_s))
        elif ended_s <= begins[-1] + last.period_s:  # the next may begin from then on
            quiet.append((cpu_after - cpu_before, ended_s - began_s))
    if not quiet or not during:
        return None
    usual_cpu, usual_s = _mean(quiet)
    copying_cpu, copying_s = _mean(during)
    part = len(during) / len(outcome.copies) * usual_s / max(last.period_s, last.seconds)  # of all rounds
    more_cpu, more_s = copying_cpu / usual_cpu - 1, copying_s / usual_s - 1
    return Protection(part * more_cpu, part * more_s, len(outcome.copies), len(quiet))


def _mean(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.fmean(a for a, _ in pairs), statistics.fmean(b for _, b in pairs)

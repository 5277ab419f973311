"""What copies cost: rounds during which one was under way against the quiet ones right before and after it.

Two runs of a quarter of a minute differ by more than copies cost, and so do the beginning and the end of one run;
rounds next to each other share the machine as it was then.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from benchmarks.recovery.session import Outcome

WARM_UP = 2  # rounds
NEAR = 5  # quiet rounds before and after a copy that it is compared with


@dataclass(frozen=True)
class Protection:
    """How much dearer training is with copies than without, as parts of it."""

    cpu: float
    time: float
    copies: int  # that have quiet rounds next to them
    quiet_rounds: int
    cpu_error: float | None = None  # standard error, by how much copies differ
    time_error: float | None = None


class _Round(NamedTuple):
    began_s: float
    ended_s: float
    cpu_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


def protection(outcome: Outcome) -> Protection | None:
    """None where there were no copies, or no rounds without next to one."""
    if not outcome.copies or outcome.losses:
        return None
    ends = [outcome.began_s + c.at_s for c in outcome.copies]
    spans = [(end - c.seconds, end) for end, c in zip(ends, outcome.copies, strict=True)]
    both = list(zip(outcome.committed_s, outcome.cpu_s, strict=False))[WARM_UP:]
    rounds = [_Round(began, ended, after - before) for (began, before), (ended, after) in pairwise(both)]
    last = outcome.copies[-1]
    period_s = max(last.period_s, last.seconds)
    quiet = [
        r for r in rounds if r.ended_s <= spans[-1][0] + last.period_s and not any(_during(r, s) for s in spans)
    ]  # after that, the next copy may be under way
    more = [extra for span in spans if (extra := _extra(span, rounds, quiet)) is not None]
    if not more:
        return None
    rate = sum(r.cpu_s for r in quiet) / sum(r.seconds for r in quiet)
    cpu, time = [c / (rate * period_s) for c, _ in more], [s / period_s for _, s in more]
    means = statistics.fmean(cpu), statistics.fmean(time)
    return Protection(*means, len(more), len(quiet), _standard_error(cpu), _standard_error(time))


def _standard_error(parts: list[float]) -> float | None:
    return statistics.stdev(parts) / len(parts) ** 0.5 if len(parts) > 1 else None


def _extra(span: tuple[float, float], rounds: list[_Round], quiet: list[_Round]) -> tuple[float, float] | None:
    """CPU seconds and seconds that the rounds during a copy took more than quiet ones next to it."""
    near = [r for r in quiet if r.ended_s <= span[0]][-NEAR:] + [r for r in quiet if r.began_s >= span[1]][:NEAR]
    during = [r for r in rounds if _during(r, span)]
    if not near or not during:
        return None
    usual_cpu_s, usual_s = statistics.fmean(r.cpu_s for r in near), statistics.fmean(r.seconds for r in near)
    return sum(r.cpu_s - usual_cpu_s for r in during), sum(r.seconds - usual_s for r in during)


def _during(one: _Round, span: tuple[float, float]) -> bool:
    return one.began_s < span[1] and one.ended_s > span[0]

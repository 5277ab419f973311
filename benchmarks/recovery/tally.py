"""What the scenarios came to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from benchmarks.recovery.scenarios import OUT_OF_MEMORY, Scenario
from benchmarks.recovery.session import Outcome
from benchmarks.throughput.measure import say

RUNG_2 = 1e-8


@dataclass
class Tally:
    """Counts and times over all runs."""

    ran: int = 0
    failed: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    detect_s: dict[str, list[float]] = field(default_factory=lambda: {"closed": [], "silent": []})
    switch_s: list[float] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    recover_rounds: dict[str, list[float]] = field(default_factory=dict)  # beyond those that were trained again

    def add(self, scenario: Scenario, outcome: Outcome, whole: Outcome, start: dict[str, torch.Tensor]) -> None:
        """Takes one run into account."""
        name = f"{scenario.model}: {scenario.name}"
        self.ran += 1
        self.lost += outcome.lost
        self.doubled += outcome.doubled
        problem = outcome.problem
        if not problem and not outcome.finished:
            problem = "the ledger does not close"
        if not problem and bool(outcome.losses) != scenario.needs_loss:
            problem = f"incidents: {[i.kind for i in outcome.incidents]}"
        if not problem:
            self.differences[name] = difference(outcome.state, whole.state, start)
            if self.differences[name] > (0.0 if outcome.unsplit and whole.unsplit else RUNG_2):
                problem = f"differs by {self.differences[name]:.1e}"
        if problem:
            self.failed.append(f"{name}: {problem}")
        ended = [i for i in outcome.incidents if i.kind in ("lost", "coordinator", "left") and i.recovery_s is not None]
        self.switch_s += [i.recovery_s for i in ended if i.recovery_s is not None]
        self.replayed += [i.replayed_rounds for i in ended]
        rounds = outcome.recover_rounds()
        if rounds is not None:
            self.recover_rounds.setdefault(name, []).append(rounds)
        sudden = scenario.name != OUT_OF_MEMORY  # nobody knows in which moment the system ends a process for it
        if outcome.losses and outcome.fault_s is not None and sudden:
            kind = "closed" if "kill" in scenario.name or "vanish" in scenario.name else "silent"
            self.detect_s[kind].append(outcome.began_s + outcome.losses[0].at_s - outcome.fault_s)
        words = "; ".join(f"{i.what}: {i.action}, ready after {i.recovery_s or 0:.2f} s" for i in outcome.incidents)
        say(f"{name}: {problem or 'survived'}; {words}")


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> float:
    """How far two results are apart: 0.0 if every bit is equal, else the largest norm over the whole way travelled."""
    if a.keys() != b.keys():
        return float("inf")
    if all(torch.equal(a[n], b[n]) for n in a):
        return 0.0
    way = math.sqrt(sum(float((b[n].double() - start[n].double()).norm()) ** 2 for n in start if n in b))
    return max(float((a[n].double() - b[n].double()).norm()) for n in a) / way


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Median and 95th percentile."""
    found = sorted(values)
    if not found:
        return {"median": None, "p95": None}
    return {"median": statistics.median(found), "p95": found[min(len(found) - 1, int(0.95 * len(found)))]}

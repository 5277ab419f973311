"""Every policy in turn on one testbed: when does it reach what one process reaches after 1, 2 and 4 epochs?"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.sync.alone import losses_after
from benchmarks.sync.flower_run import flower_course
from benchmarks.sync.hivemind_run import hivemind_course
from benchmarks.sync.pairs import pairs_per_s
from benchmarks.sync.runs import Course, Lone, Setting, course
from benchmarks.sync.stolen import Stolen
from benchmarks.sync.workload import WORKLOADS, write_shards
from benchmarks.testbed import Testbed
from benchmarks.throughput.cells import FLEETS
from benchmarks.throughput.machine import machine
from benchmarks.throughput.measure import say
from benchmarks.time_limit import TimeLimit

POLICIES = ("bsp", "ssp", "local", "adacomm", "adsp", "ours")
NOBODY_WAITS = ("adsp", "ours")  # first in turn: how long the others get follows from them
FAR_BEHIND = ("bsp", "ssp")  # last where time is short
START_S, SERVER_S = 20.0, 25.0  # of each run, beside training; of the server alone, at the end
ENOUGH = {"bsp": 4.4}  # times as long to the middle target, and it is plain enough how much slower somebody is
_ENOUGH = 3.0  # of all others
SEARCH_S = 40.0  # with each learning rate, for everybody
LOCAL = ("local", "adacomm")
PEERS = {"flower": flower_course, "hivemind": hivemind_course}
EPOCHS = (1, 2, 4)
Times = list[float | None]  # seconds to each target; None: never


@dataclass(frozen=True)
class Asked:
    """What to race."""

    quick: bool
    workload: str
    fleet: str
    policies: tuple[str, ...]
    seeds: int
    dirichlet: float | None
    search: bool  # for a learning rate
    most_s: float
    pythons: Mapping[str, Path]  # of peers that take part


def over(slow: Times, fast: Times, slow_had_s: float, fast_had_s: float) -> float | None:
    """The median over targets of how many times as long the slow one took.

    Who never got to a target took at least as long as it had: where that is the slow one, so many times at least, and
    where it is the fast one, at most. A target that neither got to says nothing.
    """
    pairs = [(s, f) for s, f in zip(slow, fast, strict=bool(slow and fast)) if s is not None or f is not None]
    ratios = [(slow_had_s if s is None else s) / (fast_had_s if f is None else f) for s, f in pairs]
    return statistics.median(ratios) if ratios else None


def overs(seconds: Mapping[str, Times], had_s: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """How many times as long everybody else took as each policy in which nobody waits."""
    return {
        mine: {
            name: over(times, seconds[mine], had_s[name], had_s[mine])
            for name, times in seconds.items()
            if name not in NOBODY_WAITS
        }
        for mine in NOBODY_WAITS
        if mine in seconds
    }


def rates_over_lone(samples_per_s: Mapping[str, float], lone: float) -> dict[str, float]:
    """What the policies in which nobody waits train, of what devices train by themselves."""
    return {name: samples_per_s[name] / lone for name in NOBODY_WAITS if name in samples_per_s and lone}


def best(seconds: dict[str, Times], names: Sequence[str]) -> Times:
    """The soonest of some policies at each target."""
    rows = [seconds[name] for name in names if name in seconds]
    return [min((s for s in column if s is not None), default=None) for column in zip(*rows, strict=True)]


def enough_s(policy: str, mine: Times, most_s: float) -> float:
    """How long a policy gets, given when ours reached each target: the middle one decides the median."""
    middle = mine[len(mine) // 2] if mine else None
    return most_s if middle is None else min(most_s, ENOUGH.get(policy, _ENOUGH) * middle)


def in_turn(policies: Sequence[str], peers: Iterable[str], hurried: bool) -> tuple[list[str], list[str]]:
    """Policies in which nobody waits, and all others; where time may be short, those far behind come last."""
    others = [*(policy for policy in policies if policy not in NOBODY_WAITS), *peers]
    mine = [policy for policy in policies if policy in NOBODY_WAITS]
    return mine, sorted(others, key=lambda policy: hurried and policy in FAR_BEHIND)


def began_to_learn(courses: Sequence[Course]) -> bool:
    """Whether there is something to compare with: who could not begin at all is not slow, but missing."""
    return all(course.curve for course in courses)


class Race:
    """A testbed with the shards of every worker, and what one process reaches."""

    def __init__(self, bed: Testbed, folder: Path, asked: Asked, limit: TimeLimit) -> None:
        self._bed, self._folder, self._asked, self._limit = bed, folder, asked, limit
        self._work = WORKLOADS[asked.workload]
        samples = self._work.quick if asked.quick else self._work.full
        write_shards(self._work, folder, bed.devices, samples, asked.dirichlet, seed=0)
        self._rates = self._work.rates if asked.search else self._work.rates[1:2]
        by_rate = [losses_after(self._work, EPOCHS, samples, rate, 0) for rate in self._rates]
        self.targets = min(by_rate, key=lambda losses: losses[-1])
        say(f"one process reaches {self.targets} after {EPOCHS} epochs")
        self.lone = Lone(bed, folder, asked.workload)
        self._just_looked = False
        self.rates: dict[str, float] = {}  # of learning

    def courses(self) -> Iterator[tuple[str, Course]]:
        """Every policy with every seed, policies in turn, as far as there is time.

        Learning rates are searched before the first seed.
        """
        hurried = self._limit.seconds is not None
        mine, others = in_turn(self._asked.policies, self._asked.pythons, hurried)
        for seed in range(self._asked.seeds):
            reached: dict[str, Times] = {}
            for policy in (*mine, *others):
                most_s = self._asked.most_s
                if policy not in NOBODY_WAITS:
                    most_s = enough_s(policy, best(reached, NOBODY_WAITS), most_s)
                    if not self._limit.fits(policy, START_S, most_s + SERVER_S):
                        say(f"{policy} is left out: there is no time for it")
                        continue
                if policy not in self.rates:
                    self.rates[policy] = self._searched(policy)
                one = self._beside_lone(policy, seed, most_s)
                reached[policy] = one.reached_s
                yield policy, one

    def _searched(self, policy: str) -> float:
        """The learning rate with which a policy is farthest after a while, which is the same for all."""
        if len(self._rates) == 1:
            return self._rates[0]
        self._just_looked = False
        tried = {rate: self._with_rate(policy, 0, rate, SEARCH_S, "search-") for rate in self._rates}
        return min(tried, key=lambda rate: self._last(tried[rate]))

    def _beside_lone(self, policy: str, seed: int, most_s: float) -> Course:
        """A run; where nobody waits, with a look at what devices train by themselves right before and after.

        In a quick run, the look after one is that before the next.
        """
        if policy not in NOBODY_WAITS:
            self._just_looked = False
            return self._with_rate(policy, seed, self.rates[policy], most_s)
        if not (self._asked.quick and self._just_looked):
            self.lone.look()
        one = self._with_rate(policy, seed, self.rates[policy], most_s)
        self.lone.look()
        self._just_looked = True
        return one

    def _with_rate(self, policy: str, seed: int, rate: float, most_s: float, kind: str = "") -> Course:
        where = self._folder / f"{kind}{policy}-{seed}-{rate}"
        given = self._folder, where, self.targets, Setting(self._asked.workload, rate, seed), most_s
        stolen = Stolen()
        if policy in self._asked.pythons:
            one = PEERS[policy](self._bed, self._asked.pythons[policy], *given)
        else:
            one = course(self._bed, policy, *given)
        one.had_s, one.stolen = most_s, stolen.part()
        say(
            f"{kind}{policy} ({rate}): {one.reached_s} of {most_s:.0f} s, {one.pushes} pushes, "
            f"{one.samples_per_s:.0f} samples/s, busy {one.busy:.2f}, {one.stolen:.0%} stolen {one.problem}"
        )
        return one

    @staticmethod
    def _last(one: Course) -> float:
        last = one.reached_s[-1] if one.reached_s else None
        return last if last is not None else one.had_s + min((loss for _, loss in one.curve), default=1e9)


def race(asked: Asked, limit: TimeLimit) -> dict[str, Any]:
    """Everything that it comes to, as far as there is time."""
    torch.set_num_threads(1)
    began, runs = time.monotonic(), dict[str, list[Course]]()
    with tempfile.TemporaryDirectory() as name, Testbed(FLEETS / f"{asked.fleet}.toml") as bed:
        it = Race(bed, Path(name), asked, limit)
        for policy, one in it.courses():
            runs.setdefault(policy, []).append(one)
    seconds = {policy: _medians([c.reached_s for c in courses]) for policy, courses in runs.items()}
    mine = best(seconds, NOBODY_WAITS)
    had = {policy: min(c.had_s for c in courses) for policy, courses in runs.items()}
    local_s = min((had[name] for name in LOCAL if name in had), default=0.0)
    mine_s = min((had[name] for name in NOBODY_WAITS if name in had), default=0.0)
    others = {"local": (best(seconds, LOCAL), local_s)}
    raced = {policy: seconds[policy] for policy in seconds if began_to_learn(runs[policy])}
    others |= {name: (raced.get(name, []), had.get(name, 0.0)) for name in ("bsp", "ssp", *PEERS)}
    ours = {policy: courses for policy, courses in runs.items() if policy not in PEERS}
    trained = {p: statistics.median(c.samples_per_s for c in courses) for p, courses in ours.items()}
    parts = rates_over_lone(trained, it.lone.samples_per_s)
    served = pairs_per_s()
    return {
        "quick": asked.quick, "workload": asked.workload, "fleet": asked.fleet, "dirichlet": asked.dirichlet,
        "targets": it.targets, "seconds": seconds, "had_s": had, "learning_rates": it.rates,
        "spread": {p: [[c.reached_s[i] for c in courses] for i in range(len(EPOCHS))] for p, courses in runs.items()},
        "busy": {p: statistics.median(c.busy for c in courses) for p, courses in ours.items()},
        "stolen": {p: [c.stolen for c in courses] for p, courses in runs.items()},
        "samples_per_s": trained, "lone_samples_per_s": it.lone.rates, "lone_busy": it.lone.busy,
        "rate_over_lone": min(parts.values(), default=0.0), "rates_over_lone": parts,
        **{f"best_over_{name}": over(slow, mine, had_s, mine_s) for name, (slow, had_s) in others.items()},
        "over": overs(raced, had),
        "pushes": {p: [c.pushes for c in courses] for p, courses in runs.items()},
        "pushes_lost": sum(c.lost for courses in runs.values() for c in courses),
        "pushes_doubled": sum(c.doubled for courses in runs.values() for c in courses),
        "server_pairs_per_s": served["pairs_per_s"], "server": served,
        "problems": {p: [c.problem for c in courses if c.problem] for p, courses in runs.items()},
        "curves": {p: courses[0].curve for p, courses in runs.items()},
        "machine": machine(), "duration_s": time.monotonic() - began, **limit.figures,
    }  # fmt: skip


def _medians(columns: list[Times]) -> Times:
    found: Times = []
    for column in zip(*columns, strict=True):
        known = [s for s in column if s is not None]
        found.append(statistics.median(known) if len(known) == len(column) else None)
    return found

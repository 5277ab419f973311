"""Finds a plan: which devices form which groups in which order, where to cut, how deep to run, what to recompute.

The search moves through sequences of groups. For each, `plan/search/cut_search.py` proposes cuts and the cost model
judges them; the best are polished (cuts, depths, recomputation), and the best of those are ranked by the event
simulation. With few devices every sequence is tried; with many, a local search starts from several orders of the
devices. At any time there is a best plan so far, and the time given is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from potluck.errors import PlanError
from potluck.plan.cost.round_time import CostModel, Shape, StationLine
from potluck.plan.cost.tables import Tables
from potluck.plan.search.bound import lower_bound_s
from potluck.plan.search.cut_search import Guess, Guide
from potluck.plan.search.fitting import fitting_plan, shortfall
from potluck.plan.search.ranking import Judged, Jury, Others
from potluck.plan.search.sequences import Groups, all_sequences, neighbours, shuffled, starts, without
from potluck.plan.search.shapes import Shapes
from potluck.types import DEFAULT_SCHEDULE, ModelFacts, Plan, Profile

EXHAUSTIVE_DEVICES = 4  # up to here every sequence of groups is tried
_WORTH_POLISHING = 1.25
_HOPELESS = 1.6  # with few devices, a sequence of groups guessed this much slower than the best is not judged
_WORTH_A_LOOK = 1.12  # guesses within this factor of the best are judged by the cost model
_STARTS = 6
_SIZES = 4  # of micro-batches that are searched
_MEMORY_TRIES = ((False, 0.0), (False, 1.0), (False, 2.0), (True, 0.0), (True, 1.0))  # recompute, margin
_POOL = 8  # plans that are polished and simulated
_OFFERING, _SEARCHING, _POLISHING = 0.15, 0.5, 0.65  # of the time given; the rest is for the simulation
_LOOKED_AT, _AROUND = 200, 16  # plans next to the fastest that the cost model looks at, and that are then simulated
_GUESSES, _BESIDE = 2, 48  # cuts for each sequence of groups next to the fastest, and plans that are simulated of all
_GRACE_S = 0.2  # more to search, where nothing that fits has been found
_WORTH_SIMULATING = 1.05  # plans with fewer devices within this factor of the best by the cost model


@dataclass(frozen=True)
class Found:
    """A plan and how good it is."""

    plan: Plan
    round_s: float  # by the event simulation
    cost_s: float
    bound_s: float  # no plan is faster
    left_out: tuple[tuple[str, str], ...]  # devices, and why
    runner_up: Plan | None
    runner_up_s: float | None
    seconds: float  # spent searching
    tried: int  # plans judged
    other_kinds: tuple[Found, ...] = ()  # the best plan that shares work in each other way (`plan/search/ranking.py`)


def find_plan(
    facts: ModelFacts, profile: Profile, sizes: Sequence[tuple[int, int]], *, seconds: float = 5.0, seed: int = 0,
    schedule: str = DEFAULT_SCHEDULE,
) -> Found:  # fmt: skip
    """The best plan found in the time given, with as few devices as come within 1 % of it.

    `sizes` are the micro-batch sizes and counts to choose from. Plans of the simple planners that fit are candidates
    too, while there is time: none of those is ever faster than the best.
    """
    began = time.monotonic()
    tables = Tables(profile)
    every = [CostModel(facts, profile, rows, count, tables=tables, schedule=schedule) for rows, count in sizes]
    costs = _promising(every, began + seconds * _OFFERING)
    slices = [seconds * (i + 1) / len(costs) for i in range(len(costs))]
    searches = [
        Search(cost, seed, deadline=began + _SEARCHING * end, end=began + _POLISHING * end)
        for cost, end in zip(costs, slices, strict=True)
    ]
    others = [Others(search.cost) for search in searches]
    offered = [o for planners in others for o in planners.offers(began + seconds * _OFFERING)]
    pool = sorted((scored for search in searches for scored in search.run()), key=lambda s: s[0])
    jury = Jury(facts, profile, tables, began + seconds)
    jury.know_rivals(offered)
    jury.hear([*pool, *offered, *(o for s in searches for o in s.smaller())] or _last_resort(searches, sizes))
    jury.hear(o for s in searches for o in s.with_others(jury.best().plan))
    jury.put_off()
    jury.refine(
        lambda plan: [o for s in searches for o in s.around(plan)],
        lambda plan: [o for s in searches for o in s.beside(plan, began + seconds)],
    )
    jury.hear(jury.know_rivals(o for planners in others for o in planners.offers(began + seconds)))
    bound_s = min(lower_bound_s(cost, began + seconds) for cost in every)
    tried = sum(search.tried for search in searches) + len(offered)

    def found(judged: Judged, other_kinds: tuple[Found, ...] = ()) -> Found:
        next_best = jury.runner_up(judged)
        return Found(
            plan=judged.plan,
            round_s=judged.round_s,
            cost_s=judged.cost_s,
            bound_s=bound_s,
            left_out=jury.left_out(judged),
            runner_up=next_best.plan if next_best else None,
            runner_up_s=next_best.round_s if next_best else None,
            seconds=time.monotonic() - began,
            tried=tried,
            other_kinds=other_kinds,
        )

    return found(jury.chosen(), tuple(map(found, jury.chosen_of_other_kinds())))


def _promising(costs: list[CostModel], deadline: float) -> list[CostModel]:
    """The micro-batch sizes worth a search: where there are many, those for which the guide guesses best."""
    if len(costs) <= _SIZES:
        return costs
    guessed: list[tuple[float, int]] = []
    for place, cost in enumerate(costs):
        until = time.monotonic() + (deadline - time.monotonic()) / (len(costs) - place)
        guide, best = Guide(cost), float("inf")
        for groups in starts(guide):
            guesses = guide.guesses(groups)
            best = min(best, guesses[0].seconds if guesses else best)
            if time.monotonic() > until:
                break
        guessed.append((best / (cost.rows * cost.micro_batches), place))
    return [costs[place] for _, place in sorted(guessed)[:_SIZES]]


def _last_resort(searches: Sequence[Search], sizes: Sequence[tuple[int, int]]) -> list[tuple[float, Plan]]:
    """A pipeline of single devices that fits, when the search has found nothing; or else what is missing."""
    cost = searches[0].cost
    facts, profile, schedule = cost.facts, cost.profile, cost.schedule.name
    plan = fitting_plan(facts, profile, sizes, schedule)
    if plan is not None:
        rows, count = plan.micro_batch_size, plan.micro_batches
        model = CostModel(facts, profile, rows, count, tables=cost.tables, schedule=schedule)
        return [(float(model.seconds([model.of_plan(plan)])[0]), plan)]
    missing = shortfall(facts, profile, sizes, schedule)
    words = missing.words() if missing else "no plan that fits was found in this time; give more with --plan-seconds"
    raise PlanError(f"plan: {words}")


class Search:
    """The search for one micro-batch size."""

    def __init__(
        self, cost: CostModel, seed: int, deadline: float, end: float = float("inf"), *, plain: bool = False
    ) -> None:
        self.cost, self.guide = cost, Guide(cost)
        self.shapes = Shapes(cost, few=len(cost.tables.devices) <= EXHAUSTIVE_DEVICES, plain=plain)
        self._seed, self._deadline, self._end, self._plain = seed, deadline, end, plain
        self._devices = tuple(cost.tables.devices)
        self._few = len(self._devices) <= EXHAUSTIVE_DEVICES
        self._seen: dict[Groups, float] = {}
        self._slowest: dict[Groups, float] = {}
        self._pool: dict[Shape, tuple[float, StationLine]] = {}
        self._guessed: dict[Groups, list[Guess]] = {}
        self._by_count: dict[int, tuple[float, StationLine]] = {}  # number of devices → the best plan with so many
        self._with: dict[str, tuple[float, StationLine]] = {}  # device → the best plan with it
        self._best_guess = self._best = float("inf")
        self.tried = 0

    def run(self) -> list[tuple[float, Plan]]:
        """Plans with their seconds by the cost model, best first."""
        if self._few:
            self._try_all()
        else:
            self._wander()
        self._polish()
        if not self._few and not self._plain:
            self._shed()
        best = sorted(self._pool.values(), key=lambda scored: scored[0])[:_POOL]
        return [(seconds, self.cost.plan(line)) for seconds, line in best]

    def smaller(self) -> list[tuple[float, Plan]]:
        """The best plan for each number of devices below the best one's, of those that are nearly as good."""
        best = min(self._by_count.values(), key=lambda scored: scored[0], default=None)
        if best is None:
            return []
        most = sum(len(s.stage.group) for s in best[1])
        near = [self._by_count[n] for n in sorted(self._by_count) if n < most]
        return [(s, self.cost.plan(line)) for s, line in near if s <= best[0] * _WORTH_SIMULATING]

    def with_others(self, plan: Plan) -> list[tuple[float, Plan]]:
        """The best plan with each device that a plan leaves out."""
        found = [scored for device, scored in self._with.items() if device not in plan.devices]
        return [(s, self.cost.plan(line)) for s, line in sorted(found, key=lambda scored: scored[0])]

    def around(self, plan: Plan) -> list[tuple[float, Plan]]:
        """The best few plans one step from a plan of this micro-batch size, as if no weight gradients were put off."""
        if (plan.micro_batch_size, plan.micro_batches) != (self.cost.rows, self.cost.micro_batches):
            return []
        stages = tuple((stage.blocks, tuple(m.device for m in stage.group)) for stage in plan.stages)
        depths = tuple(plan.depth(place) for place in range(len(stages)))
        shape = Shape(stages, depths, tuple(stage.recompute for stage in plan.stages))
        shapes = islice(dict.fromkeys(self.shapes.around(shape)), _LOOKED_AT)
        near = [line for s in shapes if (line := self.cost.line(s)) is not None]
        scored = sorted(zip(self.cost.seconds(near), near, strict=True), key=lambda s: s[0]) if near else []
        return [(float(seconds), self.cost.plan(line)) for seconds, line in scored[:_AROUND]]

    def beside(self, plan: Plan, deadline: float) -> list[tuple[float, Plan]]:
        """The best few plans of this micro-batch size with groups one move from a plan's, of as many as there is time
        for."""
        if (plan.micro_batch_size, plan.micro_batches) != (self.cost.rows, self.cost.micro_batches):
            return []
        groups = tuple(tuple(m.device for m in stage.group) for stage in plan.stages)
        found: list[tuple[float, StationLine]] = []
        for other in neighbours(groups, self._devices, self._seed):
            if time.monotonic() > deadline:
                break
            guesses = self.guide.guesses(other)[:_GUESSES]
            shapes = dict.fromkeys(s for g in guesses for s in self.shapes.of(other, g.cuts))
            lines = [line for s in shapes if (line := self.cost.line(s)) is not None]
            scored = zip(self.cost.seconds(lines), lines, strict=True) if lines else ()
            found += [(float(seconds), line) for seconds, line in scored]
        found.sort(key=lambda scored: scored[0])
        return [(seconds, self.cost.plan(line)) for seconds, line in found[:_BESIDE]]

    def _late(self) -> bool:
        """Whether the time is up; while nothing that fits is known, a moment is added."""
        return time.monotonic() > self._deadline + (0.0 if self._pool else _GRACE_S)

    def _half_time(self) -> float:
        return (time.monotonic() + self._deadline + _GRACE_S) / 2

    def _try_all(self) -> None:
        """Every sequence of groups; the most promising first, in case there is no time for all."""
        half_time = self._half_time()
        for groups in all_sequences(self._devices):
            if time.monotonic() > half_time:
                break
            self._guessed[groups] = self.guide.guesses(groups)
        for groups in sorted(self._guessed, key=lambda g: self._guessed[g][0].seconds if self._guessed[g] else np.inf):
            guesses = self._guessed[groups]
            if self._late() or (self._pool and guesses and guesses[0].seconds > self._best_guess * _HOPELESS):
                break
            self._try(groups)

    def _wander(self) -> None:
        """Local search from the most promising starts, then from shaken copies of the best."""
        guessed: list[tuple[float, Groups]] = []
        half_time = self._half_time()
        for groups in starts(self.guide):
            if guessed and time.monotonic() > half_time:
                break
            guesses = self._guessed[groups] = self.guide.guesses(groups)
            guessed.append((guesses[0].seconds if guesses else float("inf"), groups))
        promising = sorted(guessed)
        for place, (_, groups) in enumerate(promising):
            if self._late() or (place >= _STARTS and self._pool):
                break
            self._try(groups)
        turn = 0
        while self._pool and not self._late():
            current = min(self._seen, key=self._seen.__getitem__)
            if turn:
                current = shuffled(current, self._devices, self._seed + turn)
                self._try(current)
            self._descend(current)
            self._polish()
            turn += 1

    def _shed(self) -> None:
        """Goes on without one device after the other while a round takes hardly longer."""
        if not self._pool:
            return
        shape = min(self._pool, key=lambda shape: self._pool[shape][0])
        groups: Groups = tuple(devices for _, devices in shape.stages)
        while sum(map(len, groups)) > 1:
            fewer = [less for g in groups for d in g if (less := without(groups, d))]
            tried = []
            for less in fewer:
                if time.monotonic() > self._end:
                    return
                tried.append((self._seen[less] if less in self._seen else self._try(less), less))
            seconds, groups = min(tried)
            if seconds > self._best * _WORTH_SIMULATING:
                return

    def _descend(self, current: Groups) -> None:
        """Moves to the first better neighbour until there is none."""
        improved = True
        while improved and not self._late():
            improved = False
            for groups in neighbours(current, self._devices, self._seed):
                if self._late():
                    return
                if (
                    groups not in self._seen
                    and self._try(groups, self._slowest.get(current)) < self._seen[current] * 0.9999
                ):
                    current, improved = groups, True
                    break

    def _try(self, groups: Groups, near_s: float | None = None) -> float:
        """Judges a sequence of groups: the seconds of its best plan, infinite if none fits."""
        best = float("inf")
        known = self._guessed.pop(groups, None)
        for recompute, margin in _MEMORY_TRIES[:3] if self._plain else _MEMORY_TRIES:
            guesses = known if known is not None and (recompute, margin) == _MEMORY_TRIES[0] else None
            if guesses is None:
                guesses = self.guide.guesses(groups, near_s, recompute=recompute, margin=margin)
            best = self._look(groups, guesses) if guesses else best
            if np.isfinite(best):
                break
        if self._few:
            best = self._polish_near(best)
        self._seen[groups] = best
        return best

    def _look(self, groups: Groups, guesses: Sequence[Guess]) -> float:
        """Judges the best of some guesses, if they are worth it: infinite if none fits."""
        self._best_guess = min(self._best_guess, guesses[0].seconds)
        self._slowest[groups] = guesses[0].slowest_s
        if guesses[0].seconds > self._best_guess * _WORTH_A_LOOK and not self._few:
            return guesses[0].seconds * _WORTH_A_LOOK
        near = [g for g in guesses if g.seconds <= guesses[0].seconds * _WORTH_A_LOOK]
        best = self._judge([s for g in near[: None if self._few else 2] for s in self.shapes.of(groups, g.cuts)])
        if np.isinf(best):
            best = self._judge([s for g in guesses for s in self.shapes.of(groups, g.cuts)])
        return best

    def _polish_near(self, seconds: float) -> float:
        """Climbs from a plan just judged, if it is among the good ones."""
        improved = True
        while improved and np.isfinite(seconds) and seconds <= self._best * _WORTH_POLISHING and not self._late():
            shape = next(shape for shape, (s, _) in reversed(self._pool.items()) if s == seconds)
            better = self._judge(self.shapes.around(shape))
            improved, seconds = better < seconds * 0.9999, min(seconds, better)
        return seconds

    def _judge(self, shapes: Iterable[Shape]) -> float:
        """Adds shapes that fit to the pool; returns the seconds of the best of them."""
        fresh, best = [], float("inf")
        for shape in dict.fromkeys(shapes):
            if shape in self._pool:
                best = min(best, self._pool[shape][0])
                continue
            line = self.cost.line(shape)
            if line is not None:
                fresh.append((shape, line))
        if fresh:
            self.tried += len(fresh)
            for (shape, line), seconds in zip(fresh, self.cost.seconds([line for _, line in fresh]), strict=True):
                self._pool[shape] = (float(seconds), line)
                self._best = min(self._best, float(seconds))
                best = min(best, float(seconds))
                self._remember(float(seconds), shape, line)
        if len(self._pool) > 4000:
            keep = sorted(self._pool.items(), key=lambda item: item[1][0])[:200]
            self._pool = dict(keep)
        return best

    def _remember(self, seconds: float, shape: Shape, line: StationLine) -> None:
        """Keeps the best plan for each number of devices, and with each device."""
        devices = [d for _, group in shape.stages for d in group]
        if seconds < self._by_count.get(len(devices), (np.inf,))[0]:
            self._by_count[len(devices)] = (seconds, line)
        for device in devices:
            if seconds < self._with.get(device, (np.inf,))[0]:
                self._with[device] = (seconds, line)

    def _polish(self) -> None:
        """Shifts cuts and depths of the best plans while that helps."""
        for _ in range(20):
            ranked = sorted(self._pool, key=lambda shape: self._pool[shape][0])
            ranked = ranked[: _POOL if self._few else 4]
            before = self._pool[ranked[0]][0] if ranked else 0.0
            for shape in ranked:
                for near in _batched(self.shapes.around(shape), 32):
                    if time.monotonic() > self._end:
                        return
                    self._judge(near)
            if not ranked or min(s for s, _ in self._pool.values()) >= before * 0.99999:
                return


def _batched(shapes: Iterable[Shape], size: int) -> Iterator[list[Shape]]:
    """In lists of that size at most."""
    some = iter(shapes)
    while part := list(islice(some, size)):
        yield part

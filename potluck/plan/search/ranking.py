"""Which of many plans is taken: simulated, compared, and why devices are left out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from msgspec.structs import replace

from potluck.errors import PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import fits
from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.types import ModelFacts, Plan, Profile, Stage

WORTH_A_DEVICE = 0.01  # of a round: a device that gains less can only end the run
_DEAR = ("dapple", "asteroid")  # planners that take long on large problems
_DEAR_S = 1e-4  # for each device and square of blocks, about and rather too much
_PUT_OFF = 5  # plans of each number of micro-batches of which it is tried to put off weight gradients,
_LATE = (3, 1)  # of so many micro-batches,
_FASTER = 0.999  # and what it has to gain
_AT_ONCE = 6  # plans among which a faster one is looked for
NO_FIT = "no plan with it that fits was found"  # why a device is left out: it may lack memory
_SAME = 0.005  # two times that differ by less are the same to a person

Kind = Literal["one group", "shared stages", "single devices"]
Offer = tuple[float, Plan]  # seconds of a round by the cost model, and the plan
Near = Callable[[Plan], Iterable[Offer]]


class Others:
    """The other planners, each asked once."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._unasked = sorted(PLANNERS, key=lambda name: name in _DEAR)

    def offers(self, deadline: float) -> Iterator[Offer]:
        """Plans that fit, of those who have not been asked and for whom there is time."""
        cost = self._cost
        dear_s = _DEAR_S * len(cost.facts.blocks) ** 2 * len(cost.tables.devices)
        for name in tuple(self._unasked):
            if time.monotonic() + (dear_s if name in _DEAR else 0.0) > deadline:
                continue
            self._unasked.remove(name)
            try:
                plan = PLANNERS[name](cost.facts, cost.profile, cost.rows, cost.micro_batches)
            except PlanError:
                continue
            plan = replace(plan, schedule=cost.schedule.name)
            if fits(plan, cost.facts, cost.tables):
                yield float(cost.seconds([cost.of_plan(plan)])[0]), plan


@dataclass(frozen=True)
class Judged:
    """A plan and what it takes."""

    plan: Plan
    round_s: float  # by the event simulation
    cost_s: float

    @property
    def sample_s(self) -> float:
        """Seconds for each sample: plans of different batches can be compared."""
        return self.round_s / self.plan.batch_size


class Jury:
    """Simulates plans while there is time, one at least, and chooses."""

    def __init__(self, facts: ModelFacts, profile: Profile, tables: Tables, deadline: float) -> None:
        self._facts, self._profile, self._tables, self._deadline = facts, profile, tables, deadline
        self._judged: dict[Plan, Judged] = {}
        self._unheard: list[Offer] = []  # no time to simulate them
        self._rivals: set[Plan] = set()  # plans of other planners

    def know_rivals(self, offered: Iterable[Offer]) -> list[Offer]:
        """These plans, known to be other planners': what is chosen is at least as fast as each that is heard."""
        offers = list(offered)
        self._rivals.update(plan for _, plan in offers)
        return offers

    def hear(self, offered: Iterable[Offer]) -> None:
        """Simulates plans, the best by the cost model first."""
        for cost_s, plan in sorted(offered, key=lambda offer: offer[0] / offer[1].batch_size):
            if plan in self._judged:
                continue
            if self._judged and time.monotonic() > self._deadline:
                self._unheard.append((cost_s, plan))
                continue
            round_s = simulate(plan, self._facts, self._profile, tables=self._tables).round_s
            self._judged[plan] = Judged(plan, round_s, cost_s)

    def put_off(self) -> None:
        """Improves the fastest plans by putting off weight gradients, stage by stage, where that is faster and fits."""
        for judged in self._worth_putting_off():
            best = judged
            for index in reversed(range(1, len(best.plan.stages))):
                for count in _LATE if self._can_put_off(best.plan.stages[index]) else ():
                    late = putting_off(best.plan, index, min(count, best.plan.micro_batches))
                    if time.monotonic() > self._deadline or not fits(late, self._facts, self._tables):
                        continue
                    self.hear([(best.cost_s, late)])
                    judged_late = self._judged.get(late)  # unless there was no time left
                    if judged_late is not None and judged_late.sample_s < best.sample_s * _FASTER:
                        best = judged_late
                        break

    def _worth_putting_off(self) -> list[Judged]:
        """The fastest of each number of micro-batches: one that is behind before may be ahead after."""
        found: list[Judged] = []
        taken: Counter[int] = Counter()
        for judged in sorted(self._judged.values(), key=lambda j: j.sample_s):
            plan = judged.plan
            if plan not in self._rivals and len(plan.stages) > 1 and taken[plan.micro_batches] < _PUT_OFF:
                taken[plan.micro_batches] += 1
                found.append(judged)
        return found

    def refine(self, near: Near, beside: Near) -> None:
        """Climbs from the fastest plan of each number of micro-batches, then of each kind, while there is time.

        A step goes to a faster one of the plans `near` (other cuts and depths), else of those `beside` (other groups).
        What makes a plan fast where weight gradients are put off differs from what the cost model sees, which knows
        nothing of that; so each of these is simulated with its weight gradients put off.
        """
        for start in self._worth_climbing_from():
            best = start
            while time.monotonic() < self._deadline:
                late = [stage.late_weights for stage in best.plan.stages]
                better = self._faster_step(best, ((s, putting_all_off(plan, late)) for s, plan in near(best.plan)))
                if better is None:
                    others = ((s, self._late_where_it_can(plan)) for s, plan in beside(best.plan))
                    better = self._faster_step(best, others)
                if better is None:
                    break
                best = better

    def _worth_climbing_from(self) -> list[Judged]:
        """The fastest plan of all first, and those of other kinds last: they matter only where plans are tried."""
        kinds: dict[Kind, Judged] = {}
        counts: dict[int, Judged] = {}
        for judged in sorted(self._judged.values(), key=lambda j: j.sample_s):
            kinds.setdefault(kind_of(judged.plan), judged)
            counts.setdefault(judged.plan.micro_batches, judged)
        return list({judged.plan: judged for judged in (*counts.values(), *kinds.values())}.values())

    def _faster_step(self, best: Judged, offered: Iterable[Offer]) -> Judged | None:
        """The fastest of the first few of these plans among which there is a faster one, while there is time."""
        fitting = (offer for offer in offered if fits(offer[1], self._facts, self._tables))
        while time.monotonic() < self._deadline and (some := list(islice(fitting, _AT_ONCE))):
            self.hear(some)
            heard = [self._judged[plan] for _, plan in some if plan in self._judged]
            fastest = min(heard, key=lambda j: j.sample_s, default=best)
            if fastest.sample_s < best.sample_s * _FASTER:
                return fastest
        return None

    def _late_where_it_can(self, plan: Plan) -> Plan:
        """The plan with weight gradients put off in every stage but the first."""
        most = min(max(_LATE), plan.micro_batches)
        late = [most if place and self._can_put_off(s) else 0 for place, s in enumerate(plan.stages)]
        return putting_all_off(plan, late)

    def _can_put_off(self, stage: Stage) -> bool:
        tables = [self._tables.devices[member.device] for member in stage.group]
        return not stage.recompute and any(t.can_put_off(stage.blocks) for t in tables)

    def best(self) -> Judged:
        return min(self._judged.values(), key=lambda j: j.sample_s)

    def chosen(self) -> Judged:
        """The one with the fewest devices of those that are nearly as fast as the fastest, the fastest of these."""
        rivals = [j.sample_s for plan, j in self._judged.items() if plan in self._rivals]
        return _fewest_devices(self._judged.values(), min(rivals, default=float("inf")))

    def chosen_of_other_kinds(self) -> list[Judged]:
        """Likewise of each kind of plan that the chosen one is not of."""
        by_kind: dict[Kind, list[Judged]] = {}
        for judged in self._judged.values():
            by_kind.setdefault(kind_of(judged.plan), []).append(judged)
        by_kind.pop(kind_of(self.chosen().plan))
        return [_fewest_devices(others) for others in by_kind.values()]

    def runner_up(self, chosen: Judged) -> Judged | None:
        """The fastest other one: with other stages, or the same on other devices that take another time."""
        others = sorted((j for j in self._judged.values() if j is not chosen), key=lambda j: j.sample_s)
        return next((j for j in others if not self._alike(chosen, j)), None)

    def _alike(self, one: Judged, other: Judged) -> bool:
        if _stages(one.plan) == _stages(other.plan):
            return True
        same_time = abs(other.sample_s - one.sample_s) <= _SAME * one.sample_s
        return same_time and _outline(one.plan) == _outline(other.plan)

    def left_out(self, chosen: Judged) -> tuple[tuple[str, str], ...]:
        """Devices that a plan has no work for, and what the best plan with each would take."""
        names = [d.device.name for d in self._profile.devices if d.device.name not in chosen.plan.devices]
        return tuple((name, self._why_without(name, chosen)) for name in names)

    def _why_without(self, name: str, chosen: Judged) -> str:
        simulated = [j.sample_s / chosen.sample_s for j in self._judged.values() if name in j.plan.devices]
        by_cost = [
            cost_s / plan.batch_size / (chosen.cost_s / chosen.plan.batch_size)
            for cost_s, plan in self._unheard
            if name in plan.devices and chosen.cost_s
        ]
        ratio = min(simulated or by_cost, default=None)
        if ratio is None:
            return NO_FIT
        if ratio < 1 - 5e-4:
            return f"it would gain less than {WORTH_A_DEVICE:.0%}"
        if ratio < 1 + 5e-4:
            return "with it the best plan found is no faster"
        return f"with it the best plan found takes {ratio - 1:.1%} longer"


def _fewest_devices(judged: Collection[Judged], limit: float = float("inf")) -> Judged:
    """The one with the fewest devices of those that are nearly as fast as the fastest and within a limit."""
    fastest = min(j.sample_s for j in judged)
    limit = min(limit, fastest * (1 + WORTH_A_DEVICE))
    return min((j for j in judged if j.sample_s <= limit), key=lambda j: (len(j.plan.devices), j.sample_s))


def kind_of(plan: Plan) -> Kind:
    """In what way a plan shares work: predictions for one kind may err where those for another do not."""
    if len(plan.stages) == 1:
        return "one group"
    return "shared stages" if any(len(stage.group) > 1 for stage in plan.stages) else "single devices"


def putting_off(plan: Plan, index: int, count: int) -> Plan:
    """The plan with the weight gradients of so many micro-batches put off in one stage."""
    late = replace(plan.stages[index], late_weights=count)
    return replace(plan, stages=(*plan.stages[:index], late, *plan.stages[index + 1 :]))


def putting_all_off(plan: Plan, counts: Sequence[int]) -> Plan:
    """The plan with the weight gradients of so many micro-batches put off in each stage."""
    stages = tuple(replace(stage, late_weights=count) for stage, count in zip(plan.stages, counts, strict=True))
    return replace(plan, stages=stages)


def _stages(plan: Plan) -> tuple[object, ...]:
    """What makes two plans different to a person: stages and who is in them."""
    return tuple((s.blocks, tuple(m.device for m in s.group)) for s in plan.stages)


def _outline(plan: Plan) -> tuple[object, ...]:
    """Stages, whoever is in them."""
    return tuple((s.blocks, len(s.group)) for s in plan.stages)

"""Which of many plans is taken: simulated, compared, and why devices are left out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from potluck.errors import PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost import CostModel
from potluck.plan.events import simulate
from potluck.plan.memory import peak_bytes
from potluck.plan.tables import Tables
from potluck.types import ModelFacts, Plan, Profile

WORTH_A_DEVICE = 0.01  # of a round: a device that gains less can only end the run
_DEAR = ("dapple", "asteroid")  # planners that take long on large problems
_DEAR_S = 1e-4  # for each device and square of blocks, about and rather too much
_SAME = 0.005  # two times that differ by less are the same to a person

Offer = tuple[float, Plan]  # seconds of a round by the cost model, and the plan


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
            if _fits(plan, cost):
                yield float(cost.seconds([cost.of_plan(plan)])[0]), plan


def _fits(plan: Plan, cost: CostModel) -> bool:
    uses = peak_bytes(plan, cost.facts, tables=cost.tables)
    limits = {name: cost.tables.devices[name].memory_bytes for name in uses}
    return all(not limits[name] or use.total <= limits[name] for name, use in uses.items())


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

    def best(self) -> Judged:
        """The fastest."""
        return min(self._judged.values(), key=lambda j: j.sample_s)

    def chosen(self) -> Judged:
        """The one with the fewest devices of those that are nearly as fast as the fastest, the fastest of these."""
        rivals = [j.sample_s for plan, j in self._judged.items() if plan in self._rivals]
        limit = min([self.best().sample_s * (1 + WORTH_A_DEVICE), *rivals])
        near = [j for j in self._judged.values() if j.sample_s <= limit]
        return min(near, key=lambda j: (len(j.plan.devices), j.sample_s))

    def runner_up(self) -> Judged | None:
        """The fastest other one: with other stages, or the same on other devices that take another time."""
        chosen = self.chosen()
        others = sorted((j for j in self._judged.values() if j is not chosen), key=lambda j: j.sample_s)
        return next((j for j in others if not self._alike(chosen, j)), None)

    def _alike(self, one: Judged, other: Judged) -> bool:
        if _stages(one.plan) == _stages(other.plan):
            return True
        same_time = abs(other.sample_s - one.sample_s) <= _SAME * one.sample_s
        return same_time and _outline(one.plan) == _outline(other.plan)

    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Devices that the chosen plan has no work for, and what the best plan with each would take."""
        chosen = self.chosen()
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
            return "no plan with it that fits was found"
        if ratio < 1 - 5e-4:
            return f"it would gain less than {WORTH_A_DEVICE:.0%}"
        if ratio < 1 + 5e-4:
            return "with it the best plan found is no faster"
        return f"with it the best plan found takes {ratio - 1:.1%} longer"


def _stages(plan: Plan) -> tuple[object, ...]:
    """What makes two plans different to a person: stages and who is in them."""
    return tuple((s.blocks, tuple(m.device for m in s.group)) for s in plan.stages)


def _outline(plan: Plan) -> tuple[object, ...]:
    """Stages, whoever is in them."""
    return tuple((s.blocks, len(s.group)) for s in plan.stages)

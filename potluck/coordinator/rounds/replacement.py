"""The plan to go on with when devices are lost: soon in force, and fast until a better one may be found.

Those for the loss of any one device are found ahead, while training runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from potluck.control.cluster_events import ComputePlan
from potluck.control.setbacks import UnreachedPair
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.rounds.replan import Replanner
from potluck.coordinator.rounds.search_elsewhere import Question
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.errors import PlanError, PotluckError
from potluck.plan.cost.memory import fits
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.groups import shareable
from potluck.plan.validate import validate
from potluck.profile.members import of_devices
from potluck.recover.copies import guardians
from potluck.recover.repartition import in_conflict, nearest, settled
from potluck.types import Plan, Profile

_SOON_S = 3.0  # until a better plan may be found in the background, and adopted if that pays
# Nobody should stand still for long: a plan for which more has to move may come into force later.
_STILL_S, _STILL_ROUNDS, _IMPATIENCE = 0.4, 0.5, 10.0  # seconds, rounds, and what a second more counts
_AHEAD_S, _ALL_AHEAD_S = 0.5, 4.0  # to look for a plan for the loss of one device, and of each of them in turn

_LossKey = tuple[Plan, str, tuple[str, ...]]  # the plan in force, who is lost, who has nothing to do


class Replacement:
    """Finds plans close to the one in force."""

    def __init__(self, live: LiveFleet, prepared: PreparedJob, changes: Replanner) -> None:
        self._live, self._prepared, self._changes = live, prepared, changes
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="potluck-fallback")
        self._ahead: dict[_LossKey, Future[Plan | None]] = {}
        self._known: tuple[Profile, Tables] | None = None

    def find(self, order: ComputePlan) -> Plan | None:
        """What was wished for, the same plan if nobody is missing, or the nearest one that can be run."""
        if order.wish is not None:
            return order.wish
        idle = self._idle(order.force)
        ahead = self._found_ahead(order, tuple(idle))
        if ahead is not None and not in_conflict(ahead.devices, order.apart):
            return ahead
        return nearest(order.force, order.without, idle, self._cost(order.force, order.held), order.apart)

    def _found_ahead(self, order: ComputePlan, idle: tuple[str, ...]) -> Plan | None:
        """The plan for the loss of one device, if it is found by now and devices hold what it counted on."""
        if len(order.without) != 1:
            return None
        usual = _usually_held(order.force, order.without[0])
        ahead = self._ahead.get((order.force, order.without[0], idle))
        if ahead is None or any(not blocks <= set(order.held.get(device, ())) for device, blocks in usual.items()):
            return None
        return ahead.result() if ahead.done() and not ahead.cancelled() and ahead.exception() is None else None

    def look_ahead(self, plan: Plan, apart: Sequence[UnreachedPair] = ()) -> None:
        """Finds, in the background, a plan for the loss of each device, in which nobody of a pair `apart` meets."""
        self.cancel()
        self._ahead.clear()
        idle = self._idle(plan)
        search_s = min(_AHEAD_S, _ALL_AHEAD_S / len(plan.devices))
        for device in plan.devices:
            key, others = (plan, device, tuple(idle)), [d for d in plan.devices if d != device]
            free = [d for d in idle if not in_conflict((d, *others), apart)]
            held = _usually_held(plan, device)
            self._ahead[key] = self._pool.submit(self._nearest_or_best, plan, device, free, held, search_s)

    def cancel(self) -> None:
        """What was not begun is not needed any more."""
        for found in self._ahead.values():
            found.cancel()

    def close(self) -> None:
        """Waits for nothing."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def has_room_for_copies(self, plan: Plan) -> bool:
        """Whether devices can keep copies of their states beside what they train."""
        tables = self._tables()
        return tables is None or fits(plan, self._prepared.facts, tables, snapshot=True)

    def _tables(self) -> Tables | None:
        profile = self._changes.profile
        if profile is None:
            return None
        if self._known is None or self._known[0] is not profile:
            self._known = (profile, Tables(profile))
        return self._known[1]

    def _idle(self, plan: Plan) -> list[str]:
        profile, roster = self._changes.profile, self._live.roster
        known = set(roster.specs if profile is None else (d.device.name for d in profile.devices))
        free = [d for d in list(roster.links) if d not in plan.devices and d not in self._changes.measuring]
        return [d for d in free if d in known]

    def _nearest_or_best(
        self, plan: Plan, lost: str, idle: Sequence[str], held: Mapping[str, Collection[int]], search_s: float
    ) -> Plan | None:
        """The nearest plan, or the best that a short search finds for those who are left, if more has to move for it
        and that pays at once."""
        cost = self._cost(plan, held)
        near = nearest(plan, (lost,), idle, cost)
        profile, facts = self._changes.profile, shareable(self._prepared.facts, self._prepared.job.batchnorm)
        if profile is None:
            return near
        here = of_devices(profile, [d for d in (*plan.devices, *idle) if d != lost])
        try:
            sizes = [(plan.micro_batch_size, plan.micro_batches)]
            question = Question(facts=facts, profile=here, sizes=sizes, seconds=search_s, schedule=plan.schedule)
            found = self._changes.find(question).plan
        except PlanError:
            return near
        best = settled(found, [device.device.name for device in here.devices], cost)
        judged = [(cost(one), n, one) for n, one in enumerate((near, best)) if one is not None]
        cost_s, _, chosen = min(judged)
        return chosen if cost_s < float("inf") else None

    def _cost(self, force: Plan, held: Mapping[str, Collection[int]]) -> Callable[[Plan], float]:
        """What a plan costs that is in force for a short while, by what has to move first and how long rounds take."""
        rounds, usual_s = 1.0, 0.0
        if self._changes.profile is not None:
            facts, tables = self._prepared.facts, self._tables()
            usual_s = simulate(force, facts, self._changes.profile, tables=tables).round_s
            rounds = max(1.0, _SOON_S / usual_s)

        def cost(plan: Plan) -> float:
            moving_s = self._moving_s(plan, held)
            too_long_s = max(0.0, moving_s - min(_STILL_S, _STILL_ROUNDS * usual_s))
            return rounds * self._seconds(plan) + moving_s + _IMPATIENCE * too_long_s

        return cost

    def _seconds(self, plan: Plan) -> float:
        """Of a round; without measurements, what the largest stage touches stands for it."""
        facts, job = self._prepared.facts, self._prepared.job
        try:
            validate(plan, facts, self._live.fleet, job.batchnorm)
        except PotluckError:
            return float("inf")
        profile, tables = self._changes.profile, self._tables()
        if profile is None or tables is None:
            blocks = [facts.blocks[slice(*stage.blocks)] for stage in plan.stages]
            rows = plan.micro_batch_size
            loads = [sum(b.stash_bytes * rows + b.weight_bytes for b in some) for some in blocks]
            return max(load / len(stage.group) for load, stage in zip(loads, plan.stages, strict=True))
        if not fits(plan, facts, tables):
            return float("inf")
        return simulate(plan, facts, profile, tables=tables).round_s

    def _moving_s(self, plan: Plan, held: Mapping[str, Collection[int]]) -> float:
        """Until every device has what it has not yet: the slowest of them, as all move at once."""
        tables, facts = self._tables(), self._prepared.facts
        if tables is None:
            return 0.0
        sizes = [b.weight_bytes + b.buffer_bytes + facts.optimizer_slots * b.trainable_bytes for b in facts.blocks]
        waits = [0.0]
        for stage in plan.stages:
            for member in stage.group:
                here = held.get(member.device, ())
                missing = sum(sizes[block] for block in range(*stage.blocks) if block not in here)
                waits.append(tables.inlet_s(member.device, missing))
        return max(waits)


def _usually_held(plan: Plan, lost: str) -> dict[str, set[int]]:
    """Who holds which blocks once copies were made: its own stage's, and those it keeps for others."""
    held: dict[str, set[int]] = {m.device: set(range(*s.blocks)) for s in plan.stages for m in s.group}
    for ward, guardian in guardians(plan).items():
        stage = next(s for s in plan.stages if any(m.device == ward for m in s.group))
        held[guardian] |= set(range(*stage.blocks))
    held.pop(lost, None)
    return held

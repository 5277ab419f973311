"""Plans that are tried before one is chosen: a few rounds of each, whose weights nobody keeps.

A prediction rests on blocks that were measured one by one. What a round really takes, with everybody at work, corrects
the profile for the next plan. When that finds nothing better any more, and for the last try unless a kind of plan that
may be faster was not tried, the fastest plan is tried with shares as fast as its devices were.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.coordinator.training import run_on
from potluck.job.job import Job
from potluck.metrics.folds import rounds
from potluck.metrics.records import RECORDS, read
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.plan.events.refine import Spent, corrected, levelled
from potluck.plan.groups import shareable
from potluck.plan.schedule.known_schedules import schedule_for
from potluck.plan.search.plan_search import Found, find_plan
from potluck.plan.search.ranking import Kind, kind_of
from potluck.profile.members import of_devices
from potluck.types import Plan, Profile, RoundRecord
from potluck.units import milliseconds

FEWEST, MOST, LOOK_S = 4, 12, 5.0  # rounds of a try, and how long it lasts at most if rounds are short
_SURPRISE = 1.4  # times as long as expected: the machine may have had a bad moment
# Of what the fastest plan so far takes: predictions are not exact, and less may be gone when it is tried.
_PROMISING = 0.8
_UNTRIED = 0.9  # of what is predicted, for a kind of plan of which none was tried
_WARM_UP = 2  # of these do not count, as they fill caches and queues; one, where there are only three

Hope = tuple[float, Found]  # seconds that it may take at best, and the plan with what is expected


@dataclass(frozen=True)
class Attempt:
    """A plan and what a round of it took."""

    found: Found
    round_s: float
    spent_s: Spent


def try_plans(
    live: LiveFleet, prepared: PreparedJob, profile: Profile, sizes: Sequence[tuple[int, int]], options: Options
) -> tuple[list[Attempt], Profile]:
    """The plans that were tried, as many as `options.tries` at most, the fastest first; and the profile as corrected.

    It ends when there is nothing new to try that might be faster.
    """
    proposals = _Proposals(prepared, sizes, options.plan_s)
    attempts: list[Attempt] = []
    measured = profile
    for number in range(1, options.tries + 1):
        found = proposals.best(profile, attempts, last=number == options.tries)
        if found is None:
            break
        count = rounds_to_try(found.round_s)
        options.progress(f"trying plan {number} for {count} rounds: {milliseconds(found.round_s)} expected")
        round_s, spent_s = _at_second_sight(live, prepared, found, options)
        if not set(found.plan.devices) <= set(live.roster.links):  # another plan took its place on the way
            options.progress(f"plan {number} lost a device")
            measured, profile = (of_devices(one, live.roster.links) for one in (measured, profile))
            attempts = [a for a in attempts if set(a.found.plan.devices) <= set(live.roster.links)]
            continue
        options.progress(f"plan {number} takes {milliseconds(round_s)} a round")
        attempts.append(Attempt(found, round_s, spent_s))
        if options.should_stop():
            break
        profile = corrected(measured, prepared.facts, [(a.found.plan, a.spent_s) for a in attempts])
    return sorted(attempts, key=lambda a: a.round_s), profile


def rounds_to_try(expected_s: float) -> int:
    """Short rounds differ from one to the next, and the first touch new memory: more of them are looked at."""
    return max(FEWEST, min(MOST, round(LOOK_S / max(expected_s, 1e-9))))


def _at_second_sight(live: LiveFleet, prepared: PreparedJob, found: Found, options: Options) -> tuple[float, Spent]:
    """What a round takes; a plan that takes far longer than expected is looked at twice: machines have bad moments."""
    count = rounds_to_try(found.round_s)
    looks = [a_few_rounds(live, prepared, found.plan, count, options)]
    whole = set(found.plan.devices) <= set(live.roster.links)
    if looks[0][0] > _SURPRISE * found.round_s and whole and not options.should_stop():
        looks.append(a_few_rounds(live, prepared, found.plan, count, options))
    return min(looks, key=lambda look: look[0])


class _Proposals:
    """What to try next."""

    def __init__(self, prepared: PreparedJob, sizes: Sequence[tuple[int, int]], plan_s: float) -> None:
        self._facts = shareable(prepared.facts, prepared.job.batchnorm)
        self._sizes, self._plan_s = sizes, plan_s
        self._schedule = schedule_for(prepared.job.staleness)

    def best(self, profile: Profile, attempts: Sequence[Attempt], last: bool) -> Found | None:
        """The plan expected to be the fastest of those not tried, unless what was tried is faster; or None.

        A prediction may be wrong for pipelines in another way than for one group that has the whole model, and for
        stages that several share in another way than for single devices; so plans of a kind are expected to be as much
        slower than predicted as those that were tried. A kind that was not tried may be faster than predicted, and
        only such a one comes before the levelled plan when it is the `last`.
        """
        found = find_plan(self._facts, profile, self._sizes, seconds=self._plan_s, schedule=self._schedule)
        if not attempts:
            return found
        fastest = min(attempts, key=lambda a: a.round_s)
        level = self._levelled(profile, fastest)
        hopes = self._hopes(profile, found, attempts)
        if last and self._is_new(level, attempts):
            kinds = {kind_of(a.found.plan) for a in attempts}
            untried = [hope for hope in hopes if kind_of(hope[1].plan) not in kinds]
            return _most_hopeful(untried) if untried else level
        if hopes:
            return _most_hopeful(hopes)
        if self._is_new(found, attempts) and found.round_s < _PROMISING * fastest.round_s:
            return found  # it would have to be far slower than predicted, and the profile is corrected by now
        return level if self._is_new(level, attempts) else None

    def _hopes(self, profile: Profile, found: Found, attempts: Sequence[Attempt]) -> list[Hope]:
        """The plans found, one of each kind, that are new and may be faster than what was tried."""
        fastest_s = min(a.round_s for a in attempts)
        slower = self._slower(profile, attempts)
        hopes = []
        for one in (found, *found.other_kinds):
            times = slower.get(kind_of(one.plan))
            expected_s = one.round_s * (times or 1.0)
            at_best_s = expected_s if times else expected_s * _UNTRIED
            if self._is_new(one, attempts) and at_best_s < fastest_s:
                hopes.append((at_best_s, replace(one, round_s=expected_s)))
        return hopes

    def _slower(self, profile: Profile, attempts: Sequence[Attempt]) -> dict[Kind, float]:
        """Kind of plan → how much longer such plans took than they would by this profile."""
        kinds: dict[Kind, list[float]] = {}
        for attempt in attempts:
            predicted_s = simulate(attempt.found.plan, self._facts, profile).round_s
            kinds.setdefault(kind_of(attempt.found.plan), []).append(attempt.round_s / predicted_s)
        return {kind: statistics.fmean(found) for kind, found in kinds.items()}

    def _levelled(self, profile: Profile, attempt: Attempt) -> Found:
        plan = levelled(attempt.found.plan, self._facts, Tables(profile), attempt.spent_s)
        return replace(attempt.found, plan=plan, round_s=simulate(plan, self._facts, profile).round_s)

    @staticmethod
    def _is_new(found: Found, attempts: Sequence[Attempt]) -> bool:
        return all(found.plan != a.found.plan for a in attempts)


def _most_hopeful(hopes: Sequence[Hope]) -> Found:
    return min(hopes, key=lambda hope: hope[0])[1]


def a_few_rounds(
    live: LiveFleet, prepared: PreparedJob, plan: Plan, count: int, options: Options
) -> tuple[float, Spent]:
    """Median seconds of a round, the first ones left out, and where each device's time went.

    Who wants to stop gets what the rounds so far took, at least one.
    """
    job = shorten(prepared.job, count)
    with tempfile.TemporaryDirectory() as folder:
        brief = Options(
            run_dir=Path(folder) / "run", timeout_s=options.timeout_s, should_stop=options.should_stop, keeps=False
        )
        result = run_on(live, replace(prepared, job=job), plan, brief)
        every = rounds(read(result.run_dir / RECORDS))
    found = every[min(_WARM_UP if count > _WARM_UP + 1 else 1, len(every) - 1) :]
    return statistics.median(r.seconds for r in found), _spent(found)


def shorten(job: Job, rounds: int) -> Job:
    """The job, for so many rounds, without evaluation."""
    return replace(
        job, epochs=None, rounds=rounds, eval_data=None, metrics={}, reduce=None, best=None, patience=None,
        eval_every=None, checkpoint_every=rounds, callbacks=(),
    )  # fmt: skip


def _spent(found: Sequence[RoundRecord]) -> Spent:
    """Mean seconds of a round by device and kind of action."""
    return {
        device: {kind: statistics.fmean(r.spent_s[device].get(kind, 0.0) for r in found) for kind in kinds}
        for device, kinds in found[-1].spent_s.items()
    }

"""Measures the devices that are here and finds a plan for them."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.commands.trying import try_plans
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob
from potluck.metrics.tally import Tally
from potluck.plan.groups import shareable
from potluck.plan.schedule.known_schedules import schedule_for
from potluck.plan.search.plan_search import Found, find_plan
from potluck.profile.store import Store
from potluck.types import Profile
from potluck.units import duration_text, milliseconds


@dataclass(frozen=True)
class PlannedJob:
    """A plan, and what it rests on."""

    found: Found
    profile: Profile
    measured_s: float | None = None  # of a round, where the plan was tried

    @property
    def reason(self) -> str:
        """Why this plan, in words."""
        found = self.found
        over = found.round_s / found.bound_s if found.bound_s > 0 else 1.0
        words = f"found among {found.tried:,} in {found.seconds:.1f} s: {milliseconds(found.round_s)} a round"
        if self.measured_s is not None:
            words += f", {milliseconds(self.measured_s)} when it was tried"
        return f"{words}, {over:.2f} times what no plan can beat"


def plan_for(live: LiveFleet, prepared: PreparedJob, options: Options) -> PlannedJob:
    """The best plan found for the devices that are here."""
    settings = MeasuringTime(
        seconds=options.profile_s,
        store=None if options.profile_dir is None else Store(options.profile_dir, options.progress),
        timeout_s=options.timeout_s,
        note=options.progress,
        progress=Tally(options.progress),
    )
    options.progress(f"measuring {len(live.roster.specs)} devices, at most {duration_text(options.profile_s)}")
    profile = profile_fleet(live, prepared, settings)
    options.progress(f"looking for a plan, {duration_text(options.plan_s)}")
    found, measured_s = _best(live, prepared, profile, options)
    return PlannedJob(found, profile, measured_s)


def _best(live: LiveFleet, prepared: PreparedJob, profile: Profile, options: Options) -> tuple[Found, float | None]:
    """The plan that is expected to be the fastest or, if some are tried, that was; and what a round of it took."""
    sizes = micro_batch_choices(prepared)
    if options.tries:
        attempts, profile = try_plans(live, prepared, profile, sizes, options)
        if attempts:
            return attempts[0].found, attempts[0].round_s
    facts = shareable(prepared.facts, prepared.job.batchnorm)
    schedule = schedule_for(prepared.job.staleness)
    return find_plan(facts, profile, sizes, seconds=options.plan_s, schedule=schedule), None


def micro_batch_choices(prepared: PreparedJob) -> list[tuple[int, int]]:
    """Micro-batch sizes and counts that the job leaves open.

    Where one sample's result depends on others of its micro-batch (BatchNorm), another size would be another model: it
    stays what the job says. Else half and twice the usual size are tried too.
    """
    job = prepared.job
    usual = (job.micro_batch, job.batch_size // job.micro_batch)
    if job.micro_batch_size is not None or any(b.coupled for b in prepared.facts.blocks):
        return [usual]
    sizes = [usual[0], usual[0] // 2, usual[0] * 2]
    return [(size, job.batch_size // size) for size in sizes if size >= 2 and job.batch_size % size == 0] or [usual]

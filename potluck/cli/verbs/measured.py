"""A job with the profile of a fleet: measured on devices, read from a file, or scaled from this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.cli.display.measuring import MeasureDisplay, measure_display
from potluck.cli.stopping import Stopping
from potluck.cli.verbs.train import invitation
from potluck.commands.here import listen_address, local_fleet, tell_local_devices
from potluck.errors import InputError
from potluck.job.job import Job, load_job
from potluck.profile.store import Store, default_dir, load
from potluck.profile.synthetic import synthetic
from potluck.settings.verb_settings import ProfileSettings
from potluck.types import Fleet, ModelFacts, Profile
from potluck.wire.trust import PlainTrust

if TYPE_CHECKING:
    from potluck.coordinator.samples.prepared_job import PreparedJob


@dataclass(frozen=True)
class MeasuredJob:
    """What planning needs, and where the profile is kept."""

    job: Job
    facts: ModelFacts
    profile: Profile
    sizes: tuple[tuple[int, int], ...]  # micro-batch sizes and counts to choose from
    where: str


Check = Callable[[Job, tuple[tuple[int, int], ...]], object]  # of a job and its micro-batch sizes and counts


def measured(
    job_file: str,
    settings: ProfileSettings,
    imagined: Fleet | None = None,
    check: Check = lambda job, sizes: None,
) -> MeasuredJob:
    """The job, its model's facts and a profile; of `imagined` devices, scaled from the first one measured."""
    if settings.load is not None:
        _refuse_ignored(settings)
        load(settings.load)  # better to fail before the model is traced
    fleet, listen = local_fleet(settings), listen_address(settings)
    job = load_job(job_file, settings.staleness)
    with measure_display() as display, Stopping(lambda: None):
        display.note("tracing the model")
        from potluck.commands.choosing import micro_batch_choices
        from potluck.coordinator.samples.prepared_job import prepare_job

        prepared = prepare_job(job, display.note)
        sizes = tuple(micro_batch_choices(prepared))
        check(job, sizes)
        if settings.load is not None:
            profile, where = load(settings.load, prepared.facts.digest, len(prepared.facts.blocks)), str(settings.load)
        else:
            profile, where = _measure(prepared, fleet, listen, settings, display)
    if imagined is not None:
        profile = synthetic(profile.devices[0], imagined, prepared.facts.digest, profile.commit_s)
    return MeasuredJob(job, prepared.facts, profile, sizes, where)


def _refuse_ignored(settings: ProfileSettings) -> None:
    """A saved profile has its own devices: flags that describe others would do nothing."""
    given = {
        "--local": settings.local is not None,
        "--memory": any(settings.memory),
        "--bandwidth": settings.bandwidth is not None,
        "--threads": settings.threads is not None,
        "--devices": settings.devices > 0,
        "--no-local": settings.no_local,
    }
    ignored = [flag for flag, there in given.items() if there]
    if ignored:
        raise InputError(f"--load has its own devices and links; leave out {' and '.join(ignored)}")


def _measure(
    prepared: PreparedJob, fleet: Fleet | None, listen: str, settings: ProfileSettings, display: MeasureDisplay
) -> tuple[Profile, str]:
    from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
    from potluck.coordinator.fleet.live_fleet import LiveFleet
    from potluck.coordinator.options import Options

    tell_local_devices(settings)
    store = Store(settings.profile_dir or default_dir(os.environ), display.note)
    options = Options(
        carrier=settings.carrier, listen=listen, link_ports=settings.link_ports,
        trust=PlainTrust.on(settings.plain_network), joined=settings.devices,
        join_timeout_s=settings.timeout, timeout_s=settings.timeout,
        progress=display.note, listening=invitation(settings, display.note),
    )  # fmt: skip
    choices = MeasuringTime(
        seconds=settings.profile_seconds, store=store, fresh=settings.fresh, timeout_s=settings.timeout,
        note=display.note, progress=display.progress,
    )  # fmt: skip
    with LiveFleet(fleet, options) as live:
        return profile_fleet(live, prepared, choices), str(store.folder)

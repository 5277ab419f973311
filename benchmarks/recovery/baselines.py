"""What else could be done about a loss: heavy rescheduling, and starting again from the last checkpoint."""

from __future__ import annotations

import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.recovery.scenarios import kill
from benchmarks.recovery.session import LOOK_S, RUN_S, Outcome, Setup, end_all, run, start, take
from benchmarks.testbed import Testbed, join_all
from benchmarks.throughput.measure import say
from benchmarks.throughput.others import unhurried
from potluck.coordinator.run_folder.term_log import TERMS
from potluck.metrics.records import RECORDS, read_from
from potluck.types import RoundRecord

VICTIM = "nx"  # which has a stage alone
CHECKPOINT_EVERY = 20
NEVER_S = 1e9
LOST_AFTER = 34  # rounds, with the last checkpoint after 20
MOMENTS = (26, 30, LOST_AFTER)  # evenly about the middle between two checkpoints


def heavy_against_ours(bed: Testbed, setup: Setup, after: int, folder: Path) -> dict[str, Outcome]:
    """The same loss, dealt with in both ways."""
    found = {}
    for how in ("ours", "heavy"):
        one = replace(setup, how=how, rounds=after + 3)
        found[how] = run(bed, one, folder / f"{setup.model}-{how}", kill(VICTIM), after, seed=1)
        took = [i.recovery_s for i in found[how].losses]
        moved = [i.moved_bytes for i in found[how].losses]
        say(f"{setup.model} {how}: ready after {took} s, {moved} bytes moved {found[how].problem}")
    return found


def switch_s(outcome: Outcome) -> float:
    """From the declaration of the loss until everybody is ready."""
    return next((i.recovery_s for i in outcome.losses if i.recovery_s is not None), float("nan"))


def ours_after_a_loss(bed: Testbed, setup: Setup, folder: Path, after: int, more: int) -> Outcome:
    """A run that loses a device after so many rounds, and goes on for some more."""
    return run(bed, replace(setup, rounds=after + more), folder, kill(VICTIM), after, seed=after)


def cold_restart(bed: Testbed, setup: Setup, folder: Path, after: int) -> Outcome:
    """Everything ends with the device; all start again without it, from the last checkpoint, as torchelastic does."""
    setup = replace(setup, first_copy_s=NEVER_S, save_every=CHECKPOINT_EVERY, rounds=after + 8)
    outcome = Outcome()
    coordinator = start(bed, setup, folder, len(bed.devices))
    try:
        with unhurried(bed):
            join_all(bed, logs=folder)
            _ready(coordinator)
        _ready(coordinator)
        offset = _follow(coordinator, folder, outcome, 0, until=after)
        outcome.fault_s = time.monotonic()
        end_all(bed, coordinator)
        (folder / "run" / TERMS).unlink()  # nobody has held on: it must not wait for them
        left = [device for device in bed.devices if device != VICTIM]
        coordinator = start(bed, replace(setup, resume=True, anew=True), folder, len(left))
        join_all(bed, logs=folder, devices=left)  # with the quota they have: starting Python takes its time
        _ready(coordinator)
        _ready(coordinator)
        outcome.warm_s = time.monotonic() - outcome.fault_s
        _follow(coordinator, folder, outcome, offset, until=None)
    except (TimeoutError, RuntimeError) as error:
        outcome.problem = str(error)
    finally:
        end_all(bed, coordinator)
    return outcome


def _ready(coordinator: subprocess.Popen[bytes]) -> None:
    if coordinator.stdout is None or not coordinator.stdout.readline():
        raise RuntimeError("the coordinator ended before it was ready")


def _follow(
    coordinator: subprocess.Popen[bytes], folder: Path, outcome: Outcome, offset: int, until: int | None
) -> int:
    """Reads records until so many rounds are committed, or the run is over."""
    records, deadline = folder / "run" / RECORDS, time.monotonic() + RUN_S
    while coordinator.poll() is None and (until is None or len({r.round for r in outcome.rounds}) < until):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it took more than {RUN_S:.0f} s")
        if records.exists():
            found, offset = read_from(records, offset)
            take(found, outcome)
        time.sleep(LOOK_S)
    return offset


def rate(rounds: list[RoundRecord]) -> float:
    """Rounds per second of the usual round."""
    return 1 / statistics.median(r.seconds for r in rounds) if rounds else float("nan")

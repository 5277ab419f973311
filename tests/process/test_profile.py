"""`potluck profile` with real devices: what it measures, what it keeps, and what it says when something is wrong."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import potluck
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.training import run_on
from potluck.errors import DeviceLost
from potluck.profile.cells import only
from potluck.profile.store import Store
from potluck.types import COORDINATOR, DeviceSpec, Fleet, Member, Plan, Stage

ROOT = Path(__file__).parents[2]
PATIENT_S = 300.0  # for one command: a machine with ten other things to do needs a minute to load torch three times
MICRO, RATE = 8, 2e6

JOB = """
import potluck, torch
from torch import nn
job = potluck.Job(
    model=lambda: nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)),
    loss=nn.functional.cross_entropy, optimizer=potluck.SGD(lr=0.1),
    data=(torch.randn(64, 64), torch.randint(0, 10, (64,))), batch_size=32, micro_batch_size=8, rounds=2,
)
"""


def job(width: int = 256) -> potluck.Job:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(64, 64, generator=generator), torch.randint(0, 10, (64,), generator=generator)
    return potluck.Job(
        model=lambda: nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        ),
        loss=nn.functional.cross_entropy,
        optimizer=potluck.SGD(lr=0.1),
        data=(images, labels),
        batch_size=32,
        micro_batch_size=MICRO,
        rounds=2,
    )


@pytest.mark.full
def test_two_devices_measure_at_once_keep_it_and_train_afterwards(tmp_path):
    prepared = prepare_job(job())
    devices = (DeviceSpec(name="fast"), DeviceSpec(name="slow", speed=0.2))
    notes: list[str] = []
    moves: set[str] = set()
    store = Store(tmp_path / "cache", notes.append)
    settings = MeasuringTime(
        seconds=3.0, network_seconds=1.5, store=store, note=notes.append, progress=lambda who, *_: moves.add(who)
    )
    with LiveFleet(Fleet(devices=devices, bandwidth_bytes_s=RATE), Options(timeout_s=60.0)) as live:
        found = profile_fleet(live, prepared, settings)
        kept = list(store.folder.iterdir())
        again = profile_fleet(live, prepared, settings)
        half = Stage(blocks=(0, 2), group=(Member(device="fast", share=4),))
        rest = Stage(blocks=(2, len(prepared.facts.blocks)), group=(Member(device="slow", share=4),))
        plan = Plan(micro_batch_size=MICRO, micro_batches=4, stages=(half, rest))
        result = run_on(live, prepared, plan, Options(run_dir=tmp_path / "run", timeout_s=60.0))
    assert result.rounds == 2  # measuring leaves the devices fit for training
    assert [d.device for d in found.devices] == list(devices)
    assert moves == {"fast", "slow", "links"}
    steps = [sum(only(b, MICRO).forward_s + only(b, MICRO).backward_s for b in d.blocks) for d in found.devices]
    assert steps[1] > 2 * steps[0]
    assert all(d.message_s > 0 and d.idle_bytes > 10**7 and d.torch_version and d.host for d in found.devices)
    assert found.commit_s > 0
    links = {(link.source, link.target): link for link in found.links}
    assert set(links) == {
        (a, b) for a in (COORDINATOR, "fast", "slow") for b in (COORDINATOR, "fast", "slow") if a != b
    }
    assert all(link.measured and 0.6 * RATE < (link.bandwidth_bytes_s or 0) < 1.1 * RATE for link in found.links)
    assert found.medium == "full"
    assert len(kept) == 3  # two devices and the network
    redone = {note.partition(":")[0] for note in notes}  # on a busy machine a device may take longer than before
    for before, after in zip(found.devices, again.devices, strict=True):
        assert (before == after) != (before.device.name in redone)
    assert (again.links == found.links) != ("links" in redone)


GONE = r"device b (was ended by signal 9|is gone \(the connection closed\))"  # whichever is seen first


def kills(live: LiveFleet, device: str, at: str) -> Callable[[str, int, int], None]:
    """Progress that ends a device without a word, once this is measured."""

    def progress(what: str, done: int, total: int) -> None:
        if what == at:
            live.agents.processes[device].kill()

    return progress


@pytest.mark.parametrize("at", ["b", "links"])
def test_a_device_that_is_killed_while_it_is_measured_is_done_without(tmp_path, at):
    prepared, notes = prepare_job(job(32)), list[str]()
    fleet = Fleet(devices=tuple(DeviceSpec(name=name) for name in "abc"))
    with LiveFleet(fleet, Options(timeout_s=60.0)) as live:
        settings = MeasuringTime(seconds=2.0, note=notes.append, progress=kills(live, "b", at))
        found = profile_fleet(live, prepared, settings)
        half = Stage(blocks=(0, 2), group=(Member(device="a", share=4),))
        rest = Stage(blocks=(2, len(prepared.facts.blocks)), group=(Member(device="c", share=4),))
        plan = Plan(micro_batch_size=MICRO, micro_batches=4, stages=(half, rest))
        result = run_on(live, prepared, plan, Options(run_dir=tmp_path / "run", timeout_s=60.0), profile=found)
    assert [d.device.name for d in found.devices] == ["a", "c"]
    assert {end for link in found.links for end in (link.source, link.target)} == {COORDINATOR, "a", "c"}
    assert re.fullmatch(f"{GONE}; it is done without", "".join(notes))
    assert result.rounds == 2  # and the others are fit for training


def test_where_nobody_is_left_to_be_measured_it_ends_and_speaks_of_no_checkpoint():
    with LiveFleet(Fleet(devices=(DeviceSpec(name="b"),)), Options(timeout_s=60.0)) as live:
        settings = MeasuringTime(seconds=2.0, progress=kills(live, "b", "b"))
        with pytest.raises(DeviceLost) as lost:
            profile_fleet(live, prepare_job(job(32)), settings)
    assert re.fullmatch(f"{GONE}; start again without it, or once it is back", str(lost.value))


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("POTLUCK_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "potluck", "profile", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENT_S,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.timeout(3 * PATIENT_S)
def test_the_verb_saves_shows_and_refuses(tmp_path):
    (tmp_path / "job.py").write_text(JOB.replace("WIDTH", "32"))
    (tmp_path / "other.py").write_text(JOB.replace("WIDTH", "48"))
    code, out, err = run(tmp_path, "job.py", "--local", "a=1,b=0.5", "--profile-seconds", "1", "--save", "p.json")
    assert code == 0, err
    assert "a → b" in out
    assert "whole model" in out
    assert list((tmp_path / "cache" / "potluck" / "profiles").iterdir())
    code, out, err = run(tmp_path, "job.py", "--load", "p.json", "--json")
    assert code == 0, err
    shown = json.loads(out.splitlines()[-1])
    assert [d["device"]["name"] for d in shown["devices"]] == ["a", "b"]
    code, _, err = run(tmp_path, "other.py", "--load", "p.json")
    assert code == 2, err
    assert "p.json: a profile of another model" in err.splitlines()[-1]


@pytest.mark.parametrize("flags", [("--load", "none.json"), ("--load", "p", "--save", "q"), ("--profile-seconds", "x")])
def test_bad_input_is_one_line_and_nothing_starts(tmp_path, flags):
    (tmp_path / "job.py").write_text(JOB.replace("WIDTH", "32"))
    code, out, err = run(tmp_path, "job.py", *flags)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert flags[1] in err or flags[0] in err

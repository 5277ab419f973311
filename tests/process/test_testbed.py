"""A device of a testbed has what was set for it, measured from inside; and potluck runs there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.testbed import Testbed, join_all, start_potluck
from potluck.types import COORDINATOR
from tests.process.testbed_programs import (
    ALLOCATE,
    FLEETS,
    MBIT,
    PATIENCE_S,
    ROOT,
    SPIN,
    Program,
    fleet_of,
    near,
    on_a_testbed,
    settles,
    transfer,
    two_rooms,
    wait_until,
)

pytestmark = on_a_testbed


class TestLimits:
    """What was set is what a device has."""

    def test_a_device_gets_its_quota_of_cpu_time_and_another_one_when_that_changes(self):
        with Testbed(fleet_of(0.25, 0.08), name="cpu") as bed:
            spinning = {device: Program(bed, device, SPIN) for device in bed.devices}
            for program in spinning.values():
                program.wait_for(1)
            assert settles({spinning["d0"]: 0.25, spinning["d1"]: 0.08})
            assert min(bed.throttled(device) for device in bed.devices) > 0.5
            bed.set_quota("d0", 0.1)
            bed.set_quota("d1", 0.3)
            assert settles({spinning["d0"]: 0.1, spinning["d1"]: 0.3})

    @pytest.mark.full
    def test_the_quota_is_of_the_device_and_not_of_each_process(self):
        with Testbed(fleet_of(0.3), name="two") as bed:
            spinning = [Program(bed, "d0", SPIN) for _ in range(2)]
            for program in spinning:
                program.wait_for(1)
            before, since = bed.cpu_seconds("d0"), time.monotonic()
            for program in spinning:
                program.wait_for(3)
            assert (bed.cpu_seconds("d0") - before) / (time.monotonic() - since) == near(0.3)

    @pytest.mark.parametrize("rate", [100 * MBIT, 1000 * MBIT])
    def test_a_line_carries_its_bandwidth(self, rate: float):
        with Testbed(fleet_of(0.9, 0.9, bandwidth=rate), name="rate") as bed:
            sent, received = bed.bytes_sent("d0"), bed.bytes_received("d1")
            assert settles({transfer(bed, "d0", "d1"): rate})
            assert bed.bytes_sent("d0") - sent > 0.5 * rate
            assert bed.bytes_received("d1") - received > 0.5 * rate

    @pytest.mark.parametrize("device", ["d0", pytest.param("d1", marks=pytest.mark.full)])
    def test_either_end_of_a_transfer_can_be_slowed_down_while_it_runs(self, device: str):
        with Testbed(fleet_of(0.5, 0.5, bandwidth=100 * MBIT), name="change") as bed:
            receiving = transfer(bed, "d0", "d1")
            assert settles({receiving: 100 * MBIT})
            bed.set_bandwidth(device, 20 * MBIT)
            assert settles({receiving: 20 * MBIT})
            bed.set_bandwidth(device, None)
            assert settles({receiving: 100 * MBIT}), "what the other end allows"

    @pytest.mark.full
    def test_two_rooms_share_the_line_between_them_and_have_their_own_inside(self):
        with Testbed(two_rooms(), name="rooms") as bed:
            assert settles({transfer(bed, "a0", "a1"): 400 * MBIT})
            bed.kill("a0")
            bed.kill("a1")
            crossing = [transfer(bed, "a0", "b0"), transfer(bed, "a1", "b1")]

            def together() -> float:
                before, since = bed.bytes_received("b0") + bed.bytes_received("b1"), time.monotonic()
                for program in crossing:
                    program.wait_for(len(program.lines()) + 4)
                return (bed.bytes_received("b0") + bed.bytes_received("b1") - before) / (time.monotonic() - since)

            # A machine that is busy with something else for a moment sends less.
            wait_until(lambda: together() == near(100 * MBIT), "100 Mbit/s over the line between rooms")

    def test_a_device_is_out_of_memory_beyond_its_limit_and_not_below(self):
        limit = 100 * 2**20
        with Testbed(fleet_of(0.5, memory=limit), name="memory") as bed:
            below = Program(bed, "d0", ALLOCATE, str(round(0.8 * limit)))
            below.wait_for(1)
            assert 0.8 * limit < bed.peak_memory("d0") <= limit
            assert bed.oom_kills("d0") == 0
            assert below.process.poll() is None
            bed.kill("d0")
            beyond = Program(bed, "d0", ALLOCATE, str(round(1.1 * limit)))
            assert beyond.process.wait(PATIENCE_S) == -signal.SIGKILL
            assert bed.oom_kills("d0") == 1
            assert bed.peak_memory("d0") == near(limit)


JOB = """
import torch
from torch import nn

import potluck

torch.manual_seed(0)
x = torch.randn(96, 8)
job = potluck.Job(
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)),
    loss=nn.functional.cross_entropy,
    optimizer=potluck.SGD(lr=0.1),
    data=(x, (x[:, 0] > 0).long()),
    batch_size=32,
    micro_batch_size=8,
    epochs=2,
)
"""


class TestPotluck:
    """The real thing."""

    @pytest.mark.full
    def test_a_job_is_planned_and_trained_to_its_end_by_the_devices_of_a_testbed(self, tmp_path: Path):
        job, run, logs = tmp_path / "job.py", tmp_path / "run", tmp_path / "logs"
        job.write_text(JOB)
        verb = ["train", str(job), "--run-dir", str(run), "--profile-dir", str(tmp_path), "--profile-seconds", "3s"]
        with Testbed(fleet_of(0.8, 0.4, bandwidth=100 * MBIT, memory=2 * 10**9), name="train") as bed:
            coordinator = start_potluck(bed, verb, stdout=subprocess.PIPE)
            agents = join_all(bed, logs=logs)
            said, _ = coordinator.communicate(timeout=100)
            assert coordinator.returncode == 0, said
            for device, agent in agents.items():
                assert agent.wait(PATIENCE_S) == 0, (logs / f"{device}.log").read_text()
                assert bed.cpu_seconds(device) > 0.5
                assert bed.bytes_sent(device) > 1000
        assert b"0 lost, 0 used twice" in said
        assert (run / "model.safetensors").is_file()

    def test_the_command_says_what_is_wrong_and_leaves_nothing(self, tmp_path: Path):
        command = [
            sys.executable,
            "-m",
            "benchmarks.testbed",
            str(FLEETS / "rooms.toml"),
            "--logs",
            str(tmp_path),
            "--",
        ]
        done = subprocess.run(
            [*command, "train", "nowhere.py"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 2
        assert "potluck: nowhere.py: no such file" in done.stderr
        assert [line.split()[0] for line in done.stderr.splitlines()[1:-1]] == [
            "device", COORDINATOR, "a-1", "a-2", "a-3", "b-1", "b-2", "b-3"
        ]  # fmt: skip

"""What a testbed does to its devices on purpose, that it can be undone, and that nothing is left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.testbed import Testbed, TestbedError
from benchmarks.testbed import network as network_module
from tests.process.testbed_programs import (
    CHAT,
    MBIT,
    PATIENCE_S,
    ROOT,
    SPIN,
    Program,
    fleet_of,
    on_a_testbed,
    transfer,
    wait_until,
)

pytestmark = on_a_testbed


class TestFailures:
    """What happens to devices and lines, and that it can be undone."""

    def test_a_frozen_device_stands_still_and_goes_on_when_thawed(self):
        with Testbed(fleet_of(0.3), name="freeze") as bed:
            spinning = Program(bed, "d0", SPIN)
            spinning.wait_for(1)
            bed.freeze("d0")
            used, said = bed.cpu_seconds("d0"), len(spinning.lines())
            with pytest.raises(subprocess.TimeoutExpired):
                spinning.process.wait(0.7)
            assert (bed.cpu_seconds("d0"), len(spinning.lines())) == (used, said)
            bed.thaw("d0")
            spinning.wait_for(said + 2)

    def test_a_frozen_device_can_be_killed_with_all_that_it_started_and_others_live(self):
        family = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
        with Testbed(fleet_of(0.5, 0.5), name="kill") as bed:
            programs = [Program(bed, device, family) for device in bed.devices]
            wait_until(lambda: all(len(bed.processes(d)) == 2 for d in bed.devices), "a child on each device")
            bed.freeze("d0")
            bed.kill("d0")
            assert programs[0].process.wait(PATIENCE_S) == -signal.SIGKILL
            assert (len(bed.processes("d0")), len(bed.processes("d1"))) == (0, 2)
            Program(bed, "d0", "print('again')").wait_for(1)

    def test_a_cut_device_hears_nothing_and_is_not_heard_until_it_is_restored(self):
        with Testbed(fleet_of(0.3, 0.3), name="cut") as bed:
            chat = chatting(bed)
            bed.cut("d1")
            assert who_hears(chat) == {"d0": False, "d1": False}
            bed.restore("d1")
            assert who_hears(chat) == {"d0": True, "d1": True}

    def test_a_partition_loses_one_direction_only_and_says_nothing(self):
        with Testbed(fleet_of(0.3, 0.3), name="part") as bed:
            chat = chatting(bed)
            bed.partition("d0", "d1")
            assert who_hears(chat) == {"d0": True, "d1": False}
            bed.restore("d1")
            assert who_hears(chat) == {"d0": True, "d1": True}
            assert not any("error" in line for program in chat.values() for line in program.lines())

    @pytest.mark.full
    def test_a_connection_survives_a_short_partition(self):
        with Testbed(fleet_of(0.5, 0.5, bandwidth=100 * MBIT), name="tcp") as bed:
            receiving = transfer(bed, "d0", "d1")
            receiving.wait_for(2)
            bed.partition("d0", "d1")
            quiet_after(receiving)
            bed.restore()
            receiving.wait_for(len(receiving.lines()) + 2)


def chatting(bed: Testbed) -> dict[str, Program]:
    """Two devices that hear each other."""
    chat = {
        "d0": Program(bed, "d0", CHAT, bed.address("d1")),
        "d1": Program(bed, "d1", CHAT, bed.address("d0")),
    }
    assert who_hears(chat) == {"d0": True, "d1": True}
    return chat


def who_hears(chat: Mapping[str, Program]) -> dict[str, bool]:
    """Who hears anything at all; what was on its way does not count."""
    deadline = time.monotonic() + PATIENCE_S
    hearing: list[dict[str, bool]] = []
    while time.monotonic() < deadline:
        before = {device: program.lines().count("heard") for device, program in chat.items()}
        time.sleep(0.3)  # thirty times as long as from one word to the next
        hearing.append({device: program.lines().count("heard") > before[device] for device, program in chat.items()})
        if len(hearing) > 1 and hearing[-1] == hearing[-2] and any(program.lines() for program in chat.values()):
            return hearing[-1]
    raise AssertionError(f"it kept changing: {hearing}")


def quiet_after(program: Program) -> None:
    """Returns when a program has printed nothing for a second."""
    said, since = len(program.lines()), time.monotonic()
    deadline = since + PATIENCE_S
    while time.monotonic() < since + 1.0:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)
        if len(program.lines()) != said:
            said, since = len(program.lines()), time.monotonic()


OWNER = """
import sys, time
from benchmarks.testbed import Testbed
from potluck.types import DeviceSpec, Fleet
with Testbed(Fleet(devices=(DeviceSpec(name="d0", speed=0.2),)), name="orphan") as bed:
    bed.start("d0", [sys.executable, "-c", "import time; time.sleep(100)"])
    bed.freeze("d0")
    print(bed.start("coordinator", [sys.executable, "-c", "import time; time.sleep(100)"]).pid, flush=True)
    if sys.argv[1] == "raise":
        raise KeyError("on purpose")
    time.sleep(100)
"""


@contextlib.contextmanager
def owner(ending: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that owns a testbed, and the number of a process inside; both are dead afterwards."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, ending], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()
            process.wait(PATIENCE_S)
            clean()


def clean() -> str:
    """What `--clean` says."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.testbed", "--clean"]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout


def traces(process: int) -> list[str]:
    """All namespaces and cgroups of testbeds that a process owns or owned."""
    prefix = f"potluck-{process}-"
    groups = [
        str(p) for depth in ("*", "*/*") for p in Path("/sys/fs/cgroup").glob(f"{depth}") if p.name.startswith(prefix)
    ]
    return [space for space in network_module.spaces() if space.startswith(prefix)] + groups


class TestNothingIsLeft:
    """However its owner ends."""

    def test_after_leaving_and_after_an_error(self):
        bed = Testbed(fleet_of(0.2), name="leave")
        with bed:
            sleeper = Program(bed, "d0", "import time; time.sleep(100)")
            assert len(traces(os.getpid())) >= 3
        assert sleeper.process.returncode == -signal.SIGKILL
        assert traces(os.getpid()) == []
        with owner("raise") as (process, inside):
            process.wait(PATIENCE_S)
            assert traces(process.pid) == []
            assert not Path(f"/proc/{inside}").exists()

    def test_after_the_owner_was_killed_the_next_testbed_removes_what_it_left(self):
        with owner("wait") as (process, inside), Testbed(fleet_of(0.2), name="mine"):
            assert traces(process.pid), "a living owner keeps its testbed"
            process.kill()
            process.wait(PATIENCE_S)
            with Testbed(fleet_of(0.2), name="next"):
                assert traces(process.pid) == []
                wait_until(lambda: not Path(f"/proc/{inside}").exists(), "the end of a process left over")

    def test_after_the_owner_was_killed_the_command_removes_what_it_left(self):
        with owner("wait") as (process, inside):
            assert f"potluck-{process.pid}-" not in clean()
            process.kill()
            process.wait(PATIENCE_S)
            clean()
            assert traces(process.pid) == []
            wait_until(lambda: not Path(f"/proc/{inside}").exists(), "the end of a process left over")

    def test_after_it_could_not_be_built(self, monkeypatch: pytest.MonkeyPatch):
        def fail(*_: object) -> None:
            raise TestbedError("no such line")

        monkeypatch.setattr(network_module.Network, "set_rate", fail)
        with pytest.raises(TestbedError, match="no such line"), Testbed(fleet_of(0.2), name="half"):
            pass
        assert traces(os.getpid()) == []

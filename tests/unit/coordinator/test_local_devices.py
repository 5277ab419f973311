"""Devices of this machine are started with what they need to know, and none is left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from potluck.coordinator.fleet.local_devices import LocalAgents
from potluck.types import DeviceSpec
from potluck.wire.messages import PROOF_VARIABLE

SPECS = [DeviceSpec(name="desk", threads=2), DeviceSpec(name="pi", speed=0.25, memory_bytes=512)]


class Started:
    """A process that is none."""

    every: list[Started]  # in the order in which they were started
    lives = False
    codes: Mapping[str, int]
    fails_after = 99

    def __init__(self, command: list[str], *, env: dict[str, str], stdout: Any, **more: Any) -> None:
        if len(self.every) == self.fails_after:
            raise OSError("too many processes")
        self.command, self.environment, self.log, self.more = command, env.copy(), stdout, more
        self.killed = self.awaited = False
        self.every.append(self)

    @property
    def name(self) -> str:
        return self.command[self.command.index("--name") + 1]

    def poll(self) -> int | None:
        return self.codes.get(self.name)

    def wait(self, timeout: float | None = None) -> int:
        if self.lives and not self.killed:
            raise subprocess.TimeoutExpired(self.command, timeout or 0.0)
        self.awaited = True
        return 0

    def kill(self) -> None:
        self.killed = True


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> type[Started]:
    """What is started is no process."""
    kind = type("Started", (Started,), {"every": [], "codes": {}})
    monkeypatch.setattr("potluck.coordinator.fleet.local_devices.subprocess.Popen", kind)
    return kind


def test_each_gets_its_name_speed_memory_threads_and_a_word_that_only_it_knows(started: type[Started]) -> None:
    with LocalAgents(SPECS, "127.0.0.1:1", ["digits=/data/{device}.npz"]) as agents:
        desk, pi = started.every
    assert pi.command[1:5] == ["-m", "potluck", "join", "127.0.0.1:1"]
    given = dict(zip(pi.command[5::2], pi.command[6::2], strict=True))
    assert (given["--name"], given["--speed"], given["--memory"], given["--threads"]) == ("pi", "0.25", "512", "1")
    assert given["--data"] == "digits=/data/pi.npz"
    assert (desk.environment["OMP_NUM_THREADS"], pi.environment["OMP_NUM_THREADS"]) == ("2", "1")
    words = [process.environment[PROOF_VARIABLE] for process in started.every]
    assert words == [agents.proofs["desk"], agents.proofs["pi"]]
    assert words[0] != words[1]
    assert not any(word in process.command for word in words for process in started.every)


def test_those_that_ended_are_named_with_what_they_last_said(started: type[Started]) -> None:
    with LocalAgents([*SPECS, DeviceSpec(name="old")], "127.0.0.1:1") as agents:
        started.every[0].log.write(b"potluck: no such carrier\n\n")
        started.every[0].log.flush()
        started.codes = {"desk": 2, "old": -9}
        assert agents.died() == {
            "desk": "device desk ended with code 2: potluck: no such carrier",
            "old": "device old was ended by signal 9",
        }
        assert agents.last_line("pi") == "it said nothing"


def test_reading_what_one_said_does_not_change_where_it_writes(started: type[Started]) -> None:
    with LocalAgents(SPECS[:1], "127.0.0.1:1") as agents:
        log = started.every[0].log
        for line in (b"one\n", b"two\n"):
            log.write(line)
            log.flush()
            assert agents.last_line("desk") == line.decode().strip()


def test_who_does_not_end_is_ended(started: type[Started]) -> None:
    started.lives = True
    agents = LocalAgents(SPECS, "127.0.0.1:1")
    agents.close(0.0)
    assert [(p.killed, p.awaited, p.log.closed) for p in started.every] == [(True, True, True)] * 2


def test_who_ends_by_itself_is_not_killed(started: type[Started]) -> None:
    with LocalAgents(SPECS, "127.0.0.1:1"):
        pass
    assert [(p.killed, p.awaited) for p in started.every] == [(False, True)] * 2


def test_if_one_cannot_be_started_the_others_are_ended(started: type[Started]) -> None:
    started.fails_after = 1
    with pytest.raises(OSError, match="too many processes"):
        LocalAgents(SPECS, "127.0.0.1:1")
    assert [(p.awaited, p.log.closed) for p in started.every] == [(True, True)]

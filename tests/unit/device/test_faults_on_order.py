"""A device that does to itself what it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from potluck.device.host import faults_on_order
from potluck.device.host.faults_on_order import freeze, misbehave
from potluck.wire.messages import Misbehave

SOON_S = 20.0


def never(*_: object) -> None:
    raise AssertionError("nobody asked for this")


def test_slow_is_slow_for_as_long_as_was_said_and_then_as_before() -> None:
    factors: list[float] = []
    restored = threading.Event()

    def slow(factor: float) -> None:
        factors.append(factor)
        if factor == 1.0:
            restored.set()

    misbehave(Misbehave(do="slow", seconds=0.01, factor=4.0), slow, never)
    assert factors[0] == 4.0
    assert restored.wait(SOON_S)
    assert factors == [4.0, 1.0]


def test_leave_leaves_and_what_is_not_known_does_nothing() -> None:
    left: list[bool] = []
    misbehave(Misbehave(do="leave", seconds=0.0, factor=1.0), never, lambda: left.append(True))
    misbehave(Misbehave(do="dance", seconds=0.0, factor=1.0), never, never)
    assert left == [True]


def test_a_frozen_process_stands_still_for_as_long_as_was_said_and_then_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stopped: list[tuple[float, bool]] = []

    def sleep(seconds: float) -> None:
        stopped.append((seconds, os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])))

    monkeypatch.setattr(faults_on_order, "time", SimpleNamespace(sleep=sleep))
    try:
        freeze(process.pid, 3.0)
        assert stopped == [(3.0, True)]
        assert os.WIFCONTINUED(os.waitpid(process.pid, os.WCONTINUED | os.WNOHANG)[1])
    finally:
        process.kill()
        process.communicate(timeout=SOON_S)


def test_kill_is_a_kill() -> None:
    program = (
        "from potluck.device.host.faults_on_order import misbehave\n"
        "from potluck.wire.messages import Misbehave\n"
        "misbehave(Misbehave(do='kill', seconds=0.0, factor=1.0), lambda factor: None, lambda: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=SOON_S, check=False)
    assert done.returncode == -signal.SIGKILL

"""A device that does to itself what it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

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


def test_a_frozen_process_goes_on_afterwards() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        freezing = threading.Thread(target=freeze, args=(process.pid, 0.01))
        freezing.start()
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        freezing.join(SOON_S)
        _, status = os.waitpid(process.pid, os.WCONTINUED | os.WNOHANG)
        assert os.WIFCONTINUED(status)
    finally:
        process.kill()
        process.wait(SOON_S)


def test_kill_is_a_kill() -> None:
    program = (
        "from potluck.device.host.faults_on_order import misbehave\n"
        "from potluck.wire.messages import Misbehave\n"
        "misbehave(Misbehave(do='kill', seconds=0.0, factor=1.0), lambda factor: None, lambda: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=SOON_S, check=False)
    assert done.returncode == -signal.SIGKILL

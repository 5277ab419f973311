"""An emulated device takes as long as its speed says, also over many short pieces of work."""

from __future__ import annotations

import pytest

from potluck.device.host import throttle
from potluck.device.host.throttle import Throttle


class Clock:
    """Work takes CPU time, and sleeps end late."""

    def __init__(self, late_s: float) -> None:
        self.now_s = self.cpu_s = 0.0
        self.late_s = late_s

    def perf_counter(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.cpu_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds + self.late_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.cpu_s += seconds


def worked(monkeypatch: pytest.MonkeyPatch, late_s: float, pieces: int) -> float:
    clock = Clock(late_s)
    monkeypatch.setattr(throttle, "time", clock)
    slow = Throttle(0.25)
    for _ in range(pieces):
        with slow:
            clock.work(0.001)
    return clock.now_s


def test_sleeps_that_end_late_are_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worked(monkeypatch, late_s=0.0005, pieces=100) == pytest.approx(100 * 0.004, abs=0.001)
    assert worked(monkeypatch, late_s=0.0035, pieces=100) == pytest.approx(100 * 0.004, abs=0.004)


def test_a_device_that_stood_still_does_not_hurry_for_long_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worked(monkeypatch, late_s=10.0, pieces=1) > 10.0
    clock = Clock(10.0)
    monkeypatch.setattr(throttle, "time", clock)
    slow = Throttle(0.25)
    with slow:
        clock.work(0.001)
    clock.late_s, began = 0.0, clock.now_s
    for _ in range(100):
        with slow:
            clock.work(0.001)
    assert clock.now_s - began > 0.38

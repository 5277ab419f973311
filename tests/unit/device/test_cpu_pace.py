"""Seconds from CPU seconds."""

from __future__ import annotations

import pytest

from potluck.device.host.cpu_pace import CpuPace


def test_a_quota_stretches_cpu_seconds() -> None:
    pace = CpuPace(first=0)
    pace.add(1.0, 0.125)
    assert pace.stretch == pytest.approx(8.0, rel=0.01)
    assert pace.message_s(1e-4, 3e-4) == pytest.approx(24e-4, rel=0.01)  # all threads share what there is


def test_with_a_core_to_itself_other_threads_cost_nothing() -> None:
    pace = CpuPace(first=0)
    pace.add(1.0, 1.0)
    assert pace.stretch == pytest.approx(1.0, abs=0.01)
    assert pace.message_s(1e-4, 3e-4) == pytest.approx(1e-4, rel=0.05)


def test_a_moment_of_trouble_does_not_count() -> None:
    pace = CpuPace(first=0)
    for wall_s in (0.2, 0.2, 5.0, 0.2, 0.4):
        pace.add(wall_s, 0.2)
    assert pace.stretch == 1.0


def test_short_pieces_of_work_make_a_window_together() -> None:
    pace = CpuPace(first=0)
    for number in range(100):  # under a quota of an eighth, most pieces fit into one slice
        pace.add(0.001 if number % 10 else 0.071, 0.001)
    assert pace.stretch == pytest.approx(8.0, rel=0.1)


def test_more_cpu_than_time_is_a_grain_of_the_clock() -> None:
    pace = CpuPace(first=0)
    pace.add(1.0, 2.0)
    assert pace.stretch == 1.0

"""Curves of policies: speeds mean what they say, and the picture has every policy."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.sync.curves import HETEROGENEITY, POLICIES, PUSH_S, SPEEDS, chart, curve, reached_s, speeds_for, table


@pytest.mark.parametrize("heterogeneity", HETEROGENEITY)
def test_the_mean_speed_is_so_many_times_the_slowest(heterogeneity: float) -> None:
    speeds = speeds_for(heterogeneity)
    assert sum(speeds) / len(speeds) / min(speeds) == pytest.approx(heterogeneity)


def test_who_waits_for_a_slow_worker_takes_longer() -> None:
    times = [reached_s(policy, SPEEDS, PUSH_S, 0) or math.inf for policy in ("ours", "local", "bsp")]
    assert times == sorted(set(times))


def test_the_picture_and_the_table_have_every_policy() -> None:
    found = [curve("workers", (3, 6), lambda n: (SPEEDS * round(n / 3), PUSH_S, None))]
    document = ElementTree.fromstring(chart(found))  # noqa: S314 - made here
    lines = [element for element in document.iter() if element.tag.endswith("polyline")]
    assert len(lines) == len(POLICIES)
    assert all(f"  {policy}" in table(found) for policy in POLICIES)

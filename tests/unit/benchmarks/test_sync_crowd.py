"""Crowds of workers: who waits is idle, more of them load the server, and every panel has every policy."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.sync import crowd
from benchmarks.sync.crowd import PANELS, POLICIES, Found, as_figures, chart, crowds, table


def test_who_waits_is_idle_and_more_workers_load_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "SECONDS", 40.0)
    each = crowds((4, 40))
    for place in range(2):
        assert each["ours"][place].busy > 0.9 > 0.6 > each["local"][place].busy > each["bsp"][place].busy
    for few, many in each.values():
        assert many.served > 2 * few.served
        assert many.staleness > 2 * few.staleness


def test_the_picture_and_the_table_have_every_policy() -> None:
    each = {policy: [Found(0.5, 0.1, 0.0), Found(0.25, 0.2, 100.0)] for policy in POLICIES}
    document = ElementTree.fromstring(chart((10, 100), each))  # noqa: S314 - made here
    lines = [element.get("points", "") for element in document.iter() if element.tag.endswith("polyline")]
    assert len(lines) == len(POLICIES) * len(PANELS)
    busy, served, stale = ([float(p.split(",")[1]) for p in lines[i * len(POLICIES)].split()] for i in range(3))
    assert busy[0] < busy[1]  # less is further down
    assert served[0] > served[1]
    assert stale[0] > stale[1]
    assert all(policy in table((10, 100), each) for policy in POLICIES)
    assert as_figures((10, 100), each)["policies"]["bsp"][1]["staleness"] == 100.0

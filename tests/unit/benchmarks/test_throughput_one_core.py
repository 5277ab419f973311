"""What trainers are told after one core was measured."""

from __future__ import annotations

import pytest

from benchmarks.peers.one_core import CHANNELS_LAST, USUAL, measure
from benchmarks.throughput.one_core import OneCore, Told


def test_the_ideal_has_the_smallest_size_that_is_as_fast_as_any():
    assert OneCore({USUAL: {8: 50.0, 24: 98.0, 120: 100.0}}).ideal_size == 24
    assert OneCore({USUAL: {8: 50.0, 24: 90.0, 120: 100.0}}).ideal_size == 120


def test_a_slow_device_is_soon_done_with_a_brief_micro_batch():
    core = OneCore({USUAL: {8: 50.0, 24: 60.0, 60: 80.0, 120: 100.0}})
    assert core.ideal_size == 120
    assert core.brief_size(1.0) == 120
    assert core.brief_size(0.1) == 24  # 4 s; 60 rows take 7.5 s
    assert core.brief_size(0.001) == 8
    assert OneCore({USUAL: {8: 50.0, 24: 98.0, 120: 100.0}}).brief_size(1.0) == 24  # no larger than the ideal's


def test_a_rival_has_the_faster_order_at_the_sizes_it_can_have():
    core = OneCore({USUAL: {8: 50.0, 40: 60.0}, CHANNELS_LAST: {8: 40.0, 40: 90.0}})
    assert core.fastest([8]) == Told(8, USUAL)
    assert core.fastest([8, 40]) == Told(40, CHANNELS_LAST)
    assert core.fastest([8]).options == ()
    assert core.fastest([40]).options == ("--channels-last",)
    assert core.channels_last_gain == 1.5


def test_a_pipeline_tries_first_what_weighs_idle_stages_against_quick_passes():
    core = OneCore({USUAL: {8: 17.0, 16: 18.0, 40: 18.5}})
    assert core.promising((16, 8, 40), batch=240, stages=6) == (8, 16, 40)
    assert core.promising((16, 8, 40), batch=240, stages=1) == (40, 16, 8)


def test_a_pipeline_whose_sizes_do_not_divide_the_batch_has_one_that_does():
    core = OneCore({USUAL: {8: 17.0, 24: 18.0, 40: 18.5}})
    assert core.promising((16,), batch=120, stages=6) == (8,)


def test_without_images_there_is_one_order():
    assert OneCore({USUAL: {8: 50.0}}).channels_last_gain == 1.0


@pytest.mark.full
def test_only_sizes_that_divide_the_batch_are_measured(monkeypatch):
    monkeypatch.setattr("benchmarks.peers.one_core.TURN_S", 0.0)
    found = measure("mobilenet_v2", 8)
    assert set(found) == {USUAL, CHANNELS_LAST}
    assert all(set(by_size) == {8} for by_size in found.values())
    assert all(rate > 0 for by_size in found.values() for rate in by_size.values())

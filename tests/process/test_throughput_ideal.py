"""Plain trainers in all devices of a testbed, as a yardstick beside other measurements."""

from __future__ import annotations

import pytest

from benchmarks.testbed import Testbed
from benchmarks.throughput.cells import Cell
from benchmarks.throughput.measure import Yardstick
from benchmarks.throughput.others import Ideal
from tests.process.testbed_programs import fleet_of, on_a_testbed

pytestmark = [*on_a_testbed, pytest.mark.full]


def test_plain_trainers_train_whenever_they_are_asked_and_leave_nothing_behind():
    with Testbed(fleet_of(0.4, 0.2), name="ideal") as bed:
        with Ideal(bed, Cell("two", "mobilenet_v2", 16), 8, brief=2, seconds=2.0) as ideal:
            yardstick = Yardstick(ideal)
            idle = {device: bed.cpu_seconds(device) for device in bed.devices}
            rate = yardstick.beside(lambda: 5.0)
            assert rate is not None
            assert rate.samples_per_s == 5.0
            assert rate.ideal > 1.0
            assert rate.part == pytest.approx(5.0 / rate.ideal)
            assert all(bed.cpu_seconds(device) > idle[device] for device in bed.devices)
            for micro_batch, trained in ((None, 8), (2, 2)):
                assert ideal.burst(micro_batch) > 1.0
                assert {outcome["micro_batch"] for outcome in ideal.outcomes()} == {trained}
        assert not [pid for device in bed.devices for pid in bed.processes(device)]

"""What bytes of a message cost, from two that were timed on a machine with other things to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.profile.check import check_device
from potluck.runtime.message_cost import bytes_per_second
from tests.unit.plan.instances import a_model, a_profile


def test_a_large_message_takes_longer_by_its_bytes() -> None:
    assert bytes_per_second(1e-4, 1e-4 + 1e-3) == pytest.approx(4 * (256 * 1024 - 256) / 1e-3)


@pytest.mark.parametrize("large_s", [0.5e-4, 1e-4, 1e-4 + 1e-10, 1e-4 + 1e-5])
def test_whatever_noise_gives_can_be_saved_and_loaded(large_s: float) -> None:
    device = a_profile(0, a_model(0, 3), [1.0]).devices[0]
    check_device(replace(device, copy_bytes_s=bytes_per_second(1e-4, large_s)), 3)

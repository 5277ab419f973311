"""What bytes of a message cost, from two that were timed on a machine with other things to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from msgspec.structs import replace

from potluck.device.host.cpu_pace import CpuPace
from potluck.device.measure import message_cost
from potluck.device.measure.message_cost import bytes_per_second
from potluck.profile.plausibility import check_device
from potluck.wire.trust import ON_THIS_MACHINE
from tests.unit.plan.instances import a_model, a_profile


def test_a_large_message_takes_longer_by_its_bytes() -> None:
    assert bytes_per_second(1e-4, 1e-4 + 1e-3) == pytest.approx(4 * (256 * 1024 - 256) / 1e-3)


@pytest.mark.parametrize("large_s", [0.5e-4, 1e-4, 1e-4 + 1e-10, 1e-4 + 1e-5])
def test_whatever_noise_gives_can_be_saved_and_loaded(large_s: float) -> None:
    device = a_profile(0, a_model(0, 3), [1.0]).devices[0]
    check_device(replace(device, copy_bytes_s=bytes_per_second(1e-4, large_s)), 3)


@pytest.mark.parametrize(
    ("timed", "small_s", "known"),
    [([1e-4, 1e-3], 1e-4, True), ([9e-4, 8e-4, 1e-4, 1e-3], 1e-4, True), ([9e-4, 8e-4, 7e-4, 6e-4], 7e-4, False)],
)
def test_where_noise_hides_what_bytes_cost_it_is_measured_once_more(
    monkeypatch: pytest.MonkeyPatch, timed: list[float], small_s: float, known: bool
) -> None:
    """A message large enough to tell, seen once or twice; who saw nothing but noise twice says so."""
    left = list(timed)
    link = SimpleNamespace(address="", adopt=lambda *_: None, close=lambda: None)
    monkeypatch.setattr(message_cost, "open_link", lambda *_: link)
    monkeypatch.setattr(message_cost, "_seconds", lambda *_: left.pop(0))
    found_s, bytes_s = message_cost.message_cost("zmq", torch.device("cpu"), cast(CpuPace, None), 1.0, ON_THIS_MACHINE)
    assert (found_s, bytes_s is not None, left) == (small_s, known, [])

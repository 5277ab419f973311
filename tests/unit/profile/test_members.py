"""Profiles as devices come and go."""

from __future__ import annotations

from msgspec.structs import replace

from potluck.plan.cost.tables import Tables
from potluck.profile.members import of_devices, with_newcomer
from potluck.types import COORDINATOR, DeviceSpec
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(1, 4)


def test_who_is_gone_takes_its_links_along() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5, 0.25])
    found = of_devices(profile, ["d0", "d2"])
    assert [d.device.name for d in found.devices] == ["d0", "d2"]
    assert {name for link in found.links for name in (link.source, link.target)} == {"d0", "d2", COORDINATOR}


def test_a_newcomer_has_the_usual_link_to_everybody() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5], bandwidth=1e7)
    new = replace(profile.devices[0], device=DeviceSpec(name="new"))
    found = with_newcomer(profile, new)
    pairs = {(link.source, link.target): link for link in found.links}
    for other in ("d0", "d1", COORDINATOR):
        assert pairs[other, "new"].bandwidth_bytes_s == 1e7
        assert pairs["new", other].bandwidth_bytes_s == 1e7
        assert not pairs["new", other].measured
    assert len(pairs) == len(found.links)
    Tables(found)


def test_one_that_comes_back_takes_its_own_place() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5])
    again = with_newcomer(profile, profile.devices[1])
    assert sorted(d.device.name for d in again.devices) == ["d0", "d1"]
    assert len(again.links) == len(profile.links)

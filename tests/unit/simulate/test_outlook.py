"""The simulator: what a plan would come to, drawn and asked what if."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from msgspec.structs import replace

from potluck.errors import InputError
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.simulate.gantt import svg, text
from potluck.simulate.outlook import run
from potluck.simulate.what_if import slowed, with_all_links, with_device, with_link, without_device
from potluck.types import COORDINATOR, DeviceSpec, LinkProfile, Profile
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(0, 6)


def a_fleet(**choices: object) -> Profile:
    return a_profile(0, FACTS, [1.0, 0.5, 0.25], latency_s=0.001, **choices)  # type: ignore[arg-type]


def two_rooms(*, second: tuple[str, ...] = ("d2",), slow: float = 1e5) -> Profile:
    """The first devices and the coordinator in one room, these in another, and one line between the rooms."""

    def link_of(link: LinkProfile) -> LinkProfile:
        if (link.source in second) == (link.target in second):
            return link
        return replace(link, bandwidth_bytes_s=slow, trunk="two → one" if link.source in second else "one → two")

    profile = a_fleet()
    return replace(profile, links=tuple(map(link_of, profile.links)))


def trunks(profile: Profile) -> dict[tuple[str, str], str]:
    return {(link.source, link.target): link.trunk for link in profile.links if link.trunk}


def round_s(profile: Profile, planner: str = "1f1b") -> float:
    return run(PLANNERS[planner](FACTS, profile, 8, 8), FACTS, profile).round_s


def test_a_run_has_the_figures_of_the_event_simulation_and_the_memory_model() -> None:
    profile = a_fleet(memory=[10**9, 1_000_000, 0])
    plan = PLANNERS["1f1b"](FACTS, profile, 8, 8)
    result = run(plan, FACTS, profile)
    events = simulate(plan, FACTS, profile)
    uses = peak_bytes(plan, FACTS, tables=Tables(profile))
    assert result.round_s == events.round_s
    assert result.samples_per_s == pytest.approx(64 / events.round_s)
    assert result.utilisation == pytest.approx(sum(events.busy_s.values()) / 3 / events.round_s)
    assert {d.name: d.memory for d in result.devices} == uses
    assert [d.missing_bytes for d in result.devices] == [0, uses["d1"].total - 1_000_000, 0]
    assert not result.fits


def test_idle_devices_are_named() -> None:
    profile = a_fleet()
    assert run(PLANNERS["single"](FACTS, profile, 8, 8), FACTS, profile).idle == ("d1", "d2")


def test_the_svg_is_well_formed_and_has_every_device_and_every_forward() -> None:
    profile = a_fleet()
    result = run(PLANNERS["1f1b"](FACTS, profile, 8, 8), FACTS, profile)
    root = ElementTree.fromstring(svg(result, title="a <round> & more"))  # noqa: S314 - our own document
    words = [element.text or "" for element in root.iter() if element.text]
    assert "a <round> & more" in words
    for device in ("d0", "d1", "d2"):
        boxes = [w for w in words if w.startswith(f"{device}: forward")]
        assert len(boxes) == 8
    drawn = [e for e in root.iter() if e.tag.endswith("rect") and e.get("height") == "20"]
    assert all(float(b.get("x", 0)) >= 130 for b in drawn)
    assert all(float(b.get("x", 0)) + float(b.get("width", 0)) <= 130 + 1000 + 1 for b in drawn)


def test_the_text_has_a_line_for_each_device_with_its_work_in_place() -> None:
    profile = a_fleet()
    result = run(PLANNERS["single"](FACTS, profile, 8, 4), FACTS, profile)
    lines = text(result, 60)
    row = lines[0].split("│")[1]
    assert len(row) == 60 - 2 - 3
    assert row.count("░") > row.count("▓") > 0  # a backward takes twice as long
    assert row.count(" ") <= 2
    assert all(len(line) <= 100 for line in lines)


def test_a_slowed_device_takes_as_many_times_as_long() -> None:
    profile = a_fleet(bandwidth=None)
    before, after = (Tables(p).devices["d1"] for p in (profile, slowed(profile, "d1", 3.0)))
    assert after.step_s((0, 6), 8) == pytest.approx(3 * before.step_s((0, 6), 8))
    assert slowed(profile, "d1", 2.0).device("d1").device.speed == pytest.approx(0.5)
    assert slowed(profile, "d0", 3.0).device("d1") == profile.device("d1")
    assert round_s(slowed(profile, "d2", 3.0)) > 1.5 * round_s(profile)


def test_a_removed_device_is_gone_with_its_links() -> None:
    less = without_device(a_fleet(), "d1")
    assert [d.device.name for d in less.devices] == ["d0", "d2"]
    assert not [link for link in less.links if "d1" in (link.source, link.target)]
    with pytest.raises(InputError, match="no device 'd9'"):
        without_device(less, "d9")
    with pytest.raises(InputError, match="the only device"):
        without_device(without_device(less, "d0"), "d2")


def test_an_added_device_has_its_speed_memory_and_links_to_everybody() -> None:
    profile = a_fleet()
    more = with_device(profile, DeviceSpec(name="new", speed=0.5, memory_bytes=123))
    tables = Tables(more)
    assert tables.devices["new"].step_s((0, 6), 8) == pytest.approx(2 * tables.devices["d0"].step_s((0, 6), 8))
    assert more.device("new").device.memory_bytes == 123
    for other in ("d0", "d1", "d2", COORDINATOR):
        assert tables.transfer_s("new", other, 1e6) > 0
        assert tables.transfer_s(other, "new", 1e6) > 0
    assert round_s(more, "asteroid") <= round_s(profile, "asteroid")
    with pytest.raises(InputError, match="'d0' is already in the fleet"):
        with_device(profile, DeviceSpec(name="d0"))


def test_a_changed_link_is_changed_both_ways_and_no_other() -> None:
    profile = a_fleet()
    before, after = Tables(profile), Tables(with_link(profile, "d0", "d1", 1e5))
    for a, b in (("d0", "d1"), ("d1", "d0")):
        assert after.transfer_s(a, b, 1e5) == pytest.approx(1.0)
        assert after.latency_s(a, b) == 0.001
    assert after.transfer_s("d1", "d2", 1e6) == before.transfer_s("d1", "d2", 1e6)
    assert Tables(with_link(profile, COORDINATOR, "d2", 1e5)).transfer_s(COORDINATOR, "d2", 1e5) == pytest.approx(1.0)
    every = Tables(with_all_links(profile, 1e6))
    assert {every.transfer_s(a, b, 1e6) for a in ("d0", "d1") for b in ("d2", COORDINATOR)} == {1.0}
    with pytest.raises(InputError, match="no device 'd9'"):
        with_link(profile, "d0", "d9", 1e5)


@pytest.mark.parametrize("second", [("d2",), ("d1", "d2")])
def test_an_added_device_stands_beside_its_twin_and_shares_the_line_to_the_other_room(second: tuple[str, ...]) -> None:
    """With d0 alone beside the coordinator, their link is what lies between two in that room."""
    profile = two_rooms(second=second)
    profile = replace(profile, links=tuple(sorted(profile.links, key=lambda link: not link.trunk)))
    more = with_device(profile, DeviceSpec(name="new"))
    between = [link for link in more.links if {link.source, link.target} == {"new", "d0"}]
    assert [(link.bandwidth_bytes_s, link.trunk) for link in between] == [(1e7, "")] * 2
    crossing = {(a, b): name for (a, b), name in trunks(more).items() if "new" in (a, b)}
    assert set(crossing) == {pair for d in second for pair in (("new", d), (d, "new"))}
    assert {crossing["new", d] for d in second} == {"one → two"}


def test_an_added_device_shares_nothing_with_a_twin_whose_links_all_lead_to_another_room() -> None:
    more = with_device(two_rooms(), DeviceSpec(name="new"), like="d2")
    assert ("new", "d0") in trunks(more)
    assert not {("new", "d2"), ("d2", "new")} & set(trunks(more))
    assert Tables(more).transfer_s("new", "d2", 1e5) == pytest.approx(1.0)


def test_an_added_device_is_as_near_its_twin_as_the_nearest_other_device() -> None:
    profile = with_link(with_link(a_fleet(), "d0", "d1", 1e6), COORDINATOR, "d0", 1e9)
    assert Tables(with_device(profile, DeviceSpec(name="new"))).transfer_s("d0", "new", 1e7) == pytest.approx(1.0)


def test_a_link_that_is_said_to_carry_so_much_shares_no_line() -> None:
    profile = two_rooms()
    before, own = trunks(profile), trunks(with_link(profile, "d0", "d2", 1e6))
    assert set(before) - set(own) == {("d0", "d2"), ("d2", "d0")}
    assert trunks(with_link(profile, "d0", "d2", latency_s=0.1)) == before
    assert trunks(with_all_links(profile, 1e6)) == {}


def test_asking_what_if_changes_nothing() -> None:
    profile = a_fleet()
    kept = a_fleet()
    slowed(profile, "d0", 2.0)
    without_device(profile, "d0")
    with_link(profile, "d0", "d1", 1.0)
    assert profile == kept

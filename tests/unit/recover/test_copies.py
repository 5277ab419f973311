"""When states are copied, and when a copy counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.recover.copies import Copying, CopyRules, copy_rate, guardians, lines, unmeasured, wards
from potluck.types import Held, Member, Plan, Stage
from tests.unit.plan.instances import a_model, a_profile


def plan_of(*groups: tuple[str, ...]) -> Plan:
    stages = (
        Stage(blocks=(i, i + 1), group=tuple(Member(device=d, share=1) for d in group))
        for i, group in enumerate(groups)
    )
    return Plan(micro_batch_size=2, micro_batches=max(len(g) for g in groups), stages=tuple(stages))


def test_who_is_alone_has_a_guardian_in_another_stage() -> None:
    plan = plan_of(("a",), ("b", "c"), ("d",))
    assert guardians(plan) == {"a": "b", "d": "a"}
    assert wards(plan, "a") == ("d",)
    assert wards(plan, "c") == ()
    assert guardians(plan_of(("a",))) == {}


def test_a_round_counts_when_every_state_is_in_two_places() -> None:
    copying = Copying(plan_of(("a",), ("b", "c")), term=3)
    assert copying.due(0.0)
    copying.ordered(5, 10.0)
    assert not copying.due(1e9)  # one at a time
    for device, stage in (("a", 0), ("b", 1), ("b", 0)):
        assert not copying.stored(device, Held(term=3, stage=stage, round=5), 11.0)
        assert copying.point is None
    assert not copying.stored("c", Held(term=2, stage=1, round=5), 11.5)  # of a term that is over
    assert not copying.stored("c", Held(term=3, stage=1, round=4), 11.5)
    assert copying.stored("c", Held(term=3, stage=1, round=5), 12.0)
    assert copying.point == 5
    assert copying.took_s == 2.0


def test_the_time_between_copies_goes_with_the_root_of_what_one_costs() -> None:
    copying = Copying(plan_of(("a",), ("b",)), term=1)
    copying.ordered(1, 100.0)
    for device, stage in (("a", 0), ("b", 1), ("b", 0), ("a", 1)):
        copying.stored(device, Held(term=1, stage=stage, round=1), 102.4)
    assert copying.period_s == pytest.approx(72**0.5)  # a tenth of 2.4 s, and the root of 2 x 0.24 x 150
    assert not copying.due(108.4)
    assert copying.due(108.5)


@pytest.mark.parametrize(
    ("cost_s", "took_s", "period_s"),
    [
        (0.12, 1.0, 6.0),  # the root of 2 x 0.12 x 150
        (0.12, 9.0, 9.0),  # one at a time
        (0.96, 1.0, 38.4),  # at most a fortieth of a device
    ],
)
def test_devices_say_what_a_copy_costs_them(cost_s: float, took_s: float, period_s: float) -> None:
    copying = Copying(plan_of(("a",), ("b",)), term=1)
    for round in (1, 2):
        copying.ordered(round, 100.0)
        for device, stage in (("a", 0), ("b", 1), ("b", 0), ("a", 1)):
            mine_s = cost_s if (device, round) == ("b", 2) else 7.0 * (2 - round)  # the first was dearer, once
            copying.stored(device, Held(term=1, stage=stage, round=round), 100.0 + took_s, mine_s)
    assert copying.period_s == pytest.approx(period_s)


def test_a_copy_takes_a_tenth_of_a_link_or_half_of_what_is_idle() -> None:
    profile = a_profile(1, a_model(1, 3), [1.0, 0.5], bandwidth=1e7)
    line = lines(profile, CopyRules())["d0", "d1"]
    assert copy_rate(line, None) == pytest.approx(1e6)
    assert copy_rate(unmeasured(CopyRules()), 2e6) == pytest.approx(
        1.25e6
    )  # nobody knows how fast it is: not as fast as it can be
    assert copy_rate(line, 2e6) == pytest.approx(4e6)
    assert copy_rate(line, 9.9e6) == pytest.approx(1e6)
    assert copy_rate(lines(replace(profile, medium="shared"), CopyRules())["d0", "d1"], 2e6) == pytest.approx(1e6)
    assert lines(a_profile(1, a_model(1, 3), [1.0, 0.5], bandwidth=None), CopyRules()) == {}


def test_what_others_leave_idle_of_a_line_between_rooms_is_not_known() -> None:
    profile = a_profile(1, a_model(1, 3), [1.0, 0.5], bandwidth=1e7)
    links = tuple(replace(link, trunk="one → two") if link.target == "d1" else link for link in profile.links)
    found = lines(replace(profile, links=links), CopyRules())
    assert copy_rate(found["d0", "d1"], 2e6) == pytest.approx(1e6)
    assert copy_rate(found["d1", "d0"], 2e6) == pytest.approx(4e6)


def test_the_first_copy_waits_until_there_is_something_to_lose() -> None:
    copying = Copying(plan_of(("a",), ("b",)), term=1, first_s=30.0)
    assert not copying.due(29.9)
    assert copying.due(30.0)


def test_a_lone_device_copies_nothing_and_neither_does_one_without_room() -> None:
    assert not Copying(plan_of(("a",)), term=1).due(0.0)
    assert not Copying(plan_of(("a",), ("b",)), term=1, enabled=False).due(0.0)


def test_a_group_that_holds_the_whole_model_copies_nothing() -> None:
    assert not Copying(plan_of(("a", "b")), term=1).due(1e9)
    assert Copying(plan_of(("a", "b"), ("c", "d")), term=1).due(1e9)  # one may commit what the other never heard of
    assert Copying(plan_of(("a", "b"), ("c",)), term=1).due(1e9)

"""The what-if flags: read, refused with what to give instead, and what a batch size makes of a plan."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from potluck.cli.verbs.what_if_flags import WhatIfs, read_changes
from potluck.errors import InputError
from potluck.types import Member, Plan, Stage
from tests.unit.builders import chain
from tests.unit.plan.instances import a_model, a_profile

NOTHING: dict[str, Any] = {"add": [], "remove": [], "slow": [], "link": [], "batch_size": None}


def changes(**asked: Any) -> WhatIfs:
    return read_changes({**NOTHING, **asked})


def test_without_flags_nothing_changes() -> None:
    plan = chain(2)
    assert not changes()
    assert changes().of_plan(plan) is plan
    assert changes().of_sizes(((4, 8),), 4) == ((4, 8),)
    assert changes(batch_size=8)


def test_devices_and_links_of_the_profile_change() -> None:
    facts = a_model(0, 3)
    profile = a_profile(0, facts, [1.0, 1.0])
    found = changes(add=["pi=0.5,1MB"], remove=["d0"], link=["d1,pi=8kbit"]).of_profile(profile)
    assert [d.device.name for d in found.devices] == ["d1", "pi"]
    assert (found.devices[1].device.speed, found.devices[1].device.memory_bytes) == (0.5, 10**6)
    rates = {(link.source, link.target): link.bandwidth_bytes_s for link in found.links}
    assert rates["d1", "pi"] == rates["pi", "d1"] == 1000.0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"add": ["pi"]}, "--add: 'pi' does not say what; give it like pi=0.25"),
        ({"add": ["pi=fast"]}, "--add: 'fast' is no speed"),
        ({"slow": ["pi=much"]}, "--slow: 'much' is no number"),
        ({"link": ["desk=10Mbit"]}, "--link: 'desk=10Mbit' names one end"),
        ({"link": ["a,b=quick"]}, "^--link: "),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_measured(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        changes(**asked)


def test_a_name_that_nobody_has_by_then_is_refused_with_its_flag() -> None:
    changes(add=["pi=1"], remove=["pi"]).check_names(["d0"])
    with pytest.raises(InputError, match=r"^--remove"):
        changes(remove=["pi"]).check_names(["d0"])


def test_a_batch_size_makes_more_turns_in_proportion() -> None:
    shared = Stage(blocks=(0, 1), group=(Member(device="a", share=1), Member(device="b", share=3)), depth=4)
    plan = Plan(micro_batch_size=4, micro_batches=4, stages=(shared,))
    found = changes(batch_size=32).of_plan(plan)
    assert (found.micro_batches, [m.share for m in found.stages[0].group]) == (8, [2, 6])
    assert found.stages[0].depth == 4
    fewer = replace(plan, stages=(replace(shared, group=(Member(device="a", share=4),)),))
    assert changes(batch_size=8).of_plan(fewer).stages[0].depth == 2
    with pytest.raises(InputError, match=r"makes 2 turns, which cannot be shared as the plan does \(a 1, b 3 of 4\)"):
        changes(batch_size=8).of_plan(plan)
    with pytest.raises(InputError, match="give a multiple of 4"):
        changes(batch_size=30).of_plan(plan)


def test_only_sizes_that_divide_the_batch_are_left() -> None:
    assert changes(batch_size=24).of_sizes(((4, 8), (16, 2), (8, 4)), 4) == ((4, 6), (8, 3))
    with pytest.raises(InputError, match="cannot be cut into micro-batches of 4; give a multiple of 4"):
        changes(batch_size=6).of_sizes(((4, 8),), 4)
    with pytest.raises(InputError, match=r"more than .* micro-batches of 4; give at most"):
        changes(batch_size=4 * 10**6).of_sizes(((4, 8),), 4)

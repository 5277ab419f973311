"""Which plans are said to give the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from potluck.plan.exactness import why_changed_on_the_way, why_not_alike, why_not_uncut
from potluck.types import Member, Plan, Sharing, Stage
from tests.extending import half_precision as half_precision  # which adds a codec
from tests.unit.builders import facts

TIED = facts(4, tied=(("embed.weight", (0, 3)),))
PLAIN = facts(4)
ALIKE = dict.fromkeys(("d0", "d1", "d2"), "a laptop")


def plan(*ends: int, group: Sequence[str] = ("d0",), sharing: Sharing = "turns") -> Plan:
    """Stages that end before these blocks; the first is shared by the group, the others have one device each."""
    first = Stage(blocks=(0, ends[0]), group=tuple(Member(device=d, share=1) for d in group), sharing=sharing)
    rest = [
        Stage(blocks=(ends[i - 1], ends[i]), group=(Member(device=f"d{i + len(group) - 1}", share=2),))
        for i in range(1, len(ends))
    ]
    return Plan(micro_batch_size=2, micro_batches=2, stages=(first, *rest))


@pytest.mark.parametrize(
    ("plans", "why"),
    [
        ([plan(4), plan(2, 4)], "embed.weight is tied across a cut"),
        ([plan(2, 4), plan(4)], "embed.weight is tied across a cut"),
        ([plan(2, 4), plan(1, 4)], "embed.weight is tied across a cut"),
        ([plan(4), plan(4, group=("d1",))], ""),
    ],
)
def test_plans_are_not_alike_where_one_of_them_cuts_between_uses_of_a_weight(plans: list[Plan], why: str) -> None:
    found = why_not_alike(plans, TIED, ALIKE)
    assert found.startswith(why)
    assert bool(found) == bool(why)
    assert why_not_alike(plans, PLAIN, ALIKE) == ""


def test_a_weight_tied_inside_a_stage_is_not_cut() -> None:
    near = facts(4, tied=(("embed.weight", (0, 1)),))
    assert why_not_alike([plan(2, 4), plan(3, 4)], near, ALIKE) == ""
    assert "tied" in why_not_alike([plan(2, 4), plan(1, 4)], near, ALIKE)


@pytest.mark.parametrize(("sharing", "uncut"), [("turns", ""), ("samples", "stage 0 is shared by samples")])
def test_a_group_by_turns_is_like_one_device_that_adds_as_it_does_but_not_like_other_groups(
    sharing: Sharing, uncut: str
) -> None:
    shared = plan(2, 4, group=("d0", "d1"), sharing=sharing)
    assert why_not_uncut(shared, PLAIN).startswith(uncut)
    assert bool(why_not_uncut(shared, PLAIN)) == bool(uncut)
    assert "shared by a group" in why_not_alike([plan(4), shared], PLAIN, ALIKE)


def test_every_stage_that_rounds_is_named() -> None:
    cut = plan(1, 2, 3, 4)
    codecs = ("half", "raw", "half", "half")
    stages = tuple(replace(stage, codec=codec) for stage, codec in zip(cut.stages, codecs, strict=True))
    why = why_changed_on_the_way(replace(cut, stages=stages))
    assert [number for number in range(4) if f"leaves stage {number}," in why] == [0, 2]
    assert why_changed_on_the_way(cut) == ""


def test_machines_of_several_kinds_round_in_their_own_ways() -> None:
    both = [plan(4), plan(2, 4)]
    assert "several kinds" in why_not_alike(both, PLAIN, {"d0": "a laptop", "d1": "a phone"})
    assert why_not_alike(both, PLAIN, {"d0": "a laptop", "d1": "a laptop", "d2": "a phone"}) == ""

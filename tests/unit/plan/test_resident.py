"""From rehearsals to what a process takes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from potluck.plan.cost.memory import SpanBytes, peak_bytes, stage_bytes
from potluck.plan.cost.resident import USUAL, to_rehearse, with_resident
from potluck.plan.cost.tables import DeviceTables, Tables
from potluck.types import Member, Plan, Stage
from tests.models.planner_instances import instance

FACTS, PROFILE = instance(0, 1, 6, memory=False)
ROWS, IN_FLIGHT = 8, 2


@dataclass(frozen=True)
class Grown:
    blocks: tuple[int, int]
    grown_bytes: int
    micro_batches: int = 12


def needed(blocks: tuple[int, int]) -> int:
    span = SpanBytes.of(FACTS, blocks)
    device = DeviceTables(PROFILE.devices[0])
    return stage_bytes(span, rows=ROWS, in_flight=IN_FLIGHT, waiting=0, device=device).total


def test_the_early_half_is_rehearsed_twice_and_every_block_once() -> None:
    early, again, late = to_rehearse(FACTS)
    assert early == again
    assert (early[0], early[1], late[1]) == (0, late[0], len(FACTS.blocks))


def test_what_is_taken_only_once_is_code_and_the_rest_is_in_proportion() -> None:
    early, _, late = to_rehearse(FACTS)
    code = 35_000_000
    grown = [
        Grown(early, int(1.2 * needed(early)) + code),
        Grown(early, int(1.2 * needed(early))),
        Grown(late, int(1.4 * needed(late))),
    ]
    found = with_resident(PROFILE.devices[0], FACTS, ROWS, IN_FLIGHT, grown)
    assert found.code_bytes == pytest.approx(code, rel=1e-6)
    assert [b.resident for b in found.blocks] == pytest.approx([1.2] * early[1] + [1.4] * (late[1] - late[0]), rel=1e-4)
    assert found.rehearsed == 36


def test_blocks_that_nobody_rehearsed_take_as_much_as_the_worst_that_were() -> None:
    early, _, late = to_rehearse(FACTS)
    found = with_resident(PROFILE.devices[0], FACTS, ROWS, IN_FLIGHT, [Grown(early, int(1.7 * needed(early)))])
    assert [b.resident for b in found.blocks] == pytest.approx([1.7] * len(FACTS.blocks), rel=1e-4)
    assert found.rehearsed == 0
    modest = with_resident(PROFILE.devices[0], FACTS, ROWS, IN_FLIGHT, [Grown(early, needed(early))])
    assert [b.resident for b in modest.blocks[late[0] :]] == [USUAL] * (late[1] - late[0])


def test_without_a_rehearsal_the_usual_is_taken() -> None:
    found = with_resident(PROFILE.devices[0], FACTS, ROWS, IN_FLIGHT, [])
    assert {b.resident for b in found.blocks} == {USUAL}
    assert found.code_bytes == 0


def test_a_plan_counts_both() -> None:
    blocks = tuple(replace(b, resident=1.5) for b in PROFILE.devices[0].blocks)
    profile = replace(PROFILE, devices=(replace(PROFILE.devices[0], blocks=blocks, code_bytes=1000),))
    plan = Plan(
        micro_batch_size=ROWS, micro_batches=4, stages=(Stage(blocks=(0, 6), group=(Member(device="d0", share=4),)),)
    )
    bare = peak_bytes(plan, FACTS, tables=Tables(PROFILE))["d0"].total
    assert peak_bytes(plan, FACTS, tables=Tables(profile))["d0"].total == pytest.approx(1.5 * bare + 1000, abs=2)

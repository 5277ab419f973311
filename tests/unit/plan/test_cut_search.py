"""What the guide guesses of a group: near what the cost model says, also where few rows take nearly as long as many."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.plan.cost.round_time import CostModel, Shape
from potluck.plan.cost.tables import Tables
from potluck.plan.search.cut_search import Guide
from potluck.types import Profile
from tests.unit.plan.instances import a_model, a_profile

BLOCKS = 6


def with_fixed_costs(profile: Profile, part: float) -> Profile:
    """The same, but so large a part of what most rows take is there with any number of rows."""
    devices = []
    for device in profile.devices:
        blocks = []
        for block in device.blocks:
            most = block.timings[-1]
            timings = tuple(
                replace(
                    t,
                    forward_s=most.forward_s * (part + (1 - part) * t.rows / most.rows),
                    backward_s=most.backward_s * (part + (1 - part) * t.rows / most.rows),
                )
                for t in block.timings
            )
            blocks.append(replace(block, timings=timings))
        devices.append(replace(device, blocks=tuple(blocks)))
    return replace(profile, devices=tuple(devices))


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.6])
def test_a_group_is_guessed_near_what_the_cost_model_says(micro_batches: int, part: float) -> None:
    facts = a_model(3, BLOCKS, weight=1e3)
    profile = with_fixed_costs(a_profile(3, facts, [1.0, 0.7, 0.4], bandwidth=1e12), part)
    cost = CostModel(facts, profile, 16, micro_batches, tables=Tables(profile))
    group = ("d0", "d1", "d2")
    guessed = Guide(cost).guesses([group])[0].seconds
    lines = [cost.line(Shape.of([((0, BLOCKS), group)], [depth])) for depth in range(1, 4)]
    judged = min(float(s) for s in cost.seconds([line for line in lines if line is not None]))
    assert guessed == pytest.approx(judged, rel=0.25)

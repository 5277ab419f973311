"""The recurrence against the event simulation, and against pipelines one can work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.exhaustive import every_shape
from potluck.plan.cost.round_time import CostModel, Shape
from potluck.plan.events.event_simulation import simulate
from potluck.types import COORDINATOR, BlockProfile, DeviceProfile, DeviceSpec, LinkProfile, Medium, Profile, Timing
from tests.models.planner_instances import instance
from tests.unit.builders import facts as chain_facts

few = settings(max_examples=30, deadline=None, derandomize=True)


def even(devices: int, blocks: int, *, rate: float | None = None, medium: Medium = "full") -> Profile:
    """Every block takes 1 s forward and 2 s backward on every device."""
    cell = Timing(rows=4, forward_s=1.0, backward_s=2.0, kept_bytes=10, working_bytes=0)
    names = [f"d{i}" for i in range(devices)]
    return Profile(
        program="0" * 64,
        devices=tuple(
            DeviceProfile(device=DeviceSpec(name=name), blocks=(BlockProfile(timings=(cell,)),) * blocks)
            for name in names
        ),
        links=tuple(
            LinkProfile(source=a, target=b, bandwidth_bytes_s=rate)
            for a in (*names, COORDINATOR)
            for b in names
            if a != b
        ),
        medium=medium,
    )


def seconds(profile: Profile, shape: Shape, micro_batches: int, blocks: int) -> tuple[float, float]:
    """By the recurrence and by the simulation."""
    facts = chain_facts(blocks, sample_bytes=10)
    cost = CostModel(facts, profile, 4, micro_batches)
    line = cost.line(shape)
    assert line is not None
    return float(cost.seconds([line])[0]), simulate(cost.plan(line), facts, profile).round_s


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 4, 8])
def test_an_even_pipeline_without_wires_takes_micro_batches_and_stages_less_one(
    stages: int, micro_batches: int
) -> None:
    shape = Shape.of([((p, p + 1), (f"d{p}",)) for p in range(stages)], range(stages, 0, -1))
    by_cost, by_events = seconds(even(stages, stages), shape, micro_batches, stages)
    assert by_cost == pytest.approx(3.0 * (micro_batches + stages - 1))
    assert by_events == pytest.approx(by_cost)


def test_no_message_comes_back_to_a_frozen_stage() -> None:
    profile = even(2, 2)
    devices = tuple(replace(d, message_s=0.5) for d in profile.devices)
    facts = chain_facts(2, frozen=(0,))
    crossings = tuple(replace(c, gradient=False) for c in facts.crossings)
    cost = CostModel(replace(facts, crossings=crossings), replace(profile, devices=devices), 4, 1)
    line = cost.line(Shape.of([((p, p + 1), (f"d{p}",)) for p in range(2)], (2, 1)))
    assert line is not None
    assert [(s.forward_s, s.backward_s) for s in line] == [((1.5,), (2.0,))] * 2


def test_depth_one_is_one_micro_batch_at_a_time() -> None:
    shape = Shape.of([((0, 1), ("d0",)), ((1, 2), ("d1",))], (1, 1))
    by_cost, by_events = seconds(even(2, 2), shape, 5, 2)
    assert by_cost == pytest.approx(5 * 6.0)
    assert by_events == pytest.approx(by_cost)


def test_a_deeper_warm_up_hides_a_slow_wire() -> None:
    slow = even(2, 2, rate=40.0)  # 40 bytes a micro-batch: one second each way
    stages = [((0, 1), ("d0",)), ((1, 2), ("d1",))]
    shallow, _ = seconds(slow, Shape.of(stages, (2, 1)), 8, 2)
    deep, by_events = seconds(slow, Shape.of(stages, (3, 1)), 8, 2)
    assert deep < shallow
    assert by_events == pytest.approx(deep)


@pytest.mark.parametrize(("medium", "factor"), [("full", 1), ("half", 3), ("shared", 3)])
def test_a_wire_that_is_the_bottleneck_takes_its_time_once_or_for_both_directions_and_samples(
    medium: Medium, factor: int
) -> None:
    profile = even(2, 2, rate=4.0, medium=medium)  # ten seconds each way, against three of work
    shape = Shape.of([((0, 1), ("d0",)), ((1, 2), ("d1",))], (3, 1))
    _, by_events = seconds(profile, shape, 20, 2)
    assert 200 * factor <= by_events <= 200 * factor + 60


def test_turns_divide_the_work_and_sums_take_their_time() -> None:
    shape = Shape.of([((0, 2), ("d0", "d1"))], (1,))
    alone, _ = seconds(even(1, 2), Shape.of([((0, 2), ("d0",))], (1,)), 8, 2)
    both, by_events = seconds(even(2, 2), shape, 8, 2)
    assert both == pytest.approx(alone / 2)
    slow, by_slow_events = seconds(even(2, 2, rate=1000.0), shape, 8, 2)
    assert alone / 2 < slow < alone / 2 + 2 * 1000 / 1000.0  # half of 2000 bytes there, and back; some of it hidden
    assert by_events == pytest.approx(both)
    assert by_slow_events == pytest.approx(slow, rel=0.05)
    slower, by_slower_events = seconds(even(2, 2, rate=10.0), shape, 8, 2)
    assert slower == pytest.approx(200 + alone / 2, rel=0.05)  # next to that, nothing is hidden
    assert by_slower_events == pytest.approx(slower, rel=0.05)


@few
@given(st.integers(0, 5000), st.data())
def test_recurrence_and_simulation_agree_exactly_without_groups_and_nearly_with_them(
    seed: int, data: st.DataObject
) -> None:
    facts, profile = instance(seed, 3, 5, memory=False)
    shapes = list(every_shape(("d0", "d1", "d2"), 5))
    cost = CostModel(facts, profile, 8, 6)
    line = cost.line(data.draw(st.sampled_from(shapes)))
    assert line is not None
    by_cost = float(cost.seconds([line])[0])
    by_events = simulate(cost.plan(line), facts, profile).round_s
    alone = all(len(s.stage.group) == 1 for s in line)
    assert by_events == pytest.approx(by_cost, rel=1e-6 if alone else 0.3)


def test_many_plans_at_once_cost_what_each_costs_alone() -> None:
    facts, profile = instance(7, 3, 5, memory=False)
    cost = CostModel(facts, profile, 8, 6)
    lines = [line for shape in list(every_shape(("d0", "d1", "d2"), 5))[::17] if (line := cost.line(shape))]
    together = cost.seconds(lines)
    alone = np.array([cost.seconds([line])[0] for line in lines])
    assert together == pytest.approx(alone)

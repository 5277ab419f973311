"""What is missing when nothing fits, and the arrays behind it."""

from __future__ import annotations

import itertools

import pytest

from potluck.errors import PlanError
from potluck.plan.cost.memory import SpanBytes, peak_bytes, stage_bytes
from potluck.plan.cost.span_arrays import SpanArrays
from potluck.plan.cost.tables import Tables
from potluck.plan.search.fitting import fitting_plan, shortfall
from potluck.plan.search.plan_search import find_plan
from potluck.plan.validate import validate
from potluck.types import Fleet, Profile
from tests.unit.plan.instances import a_model, a_profile


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("weight", [1e4, 5e6, 2e8])
def test_many_spans_at_once_need_what_each_needs_alone(shared: bool, recompute: bool, weight: float) -> None:
    facts = a_model(1, 6, weight=weight)
    device = Tables(a_profile(1, facts, [1.0], memory=[10**6])).devices["d0"]
    spans = list(itertools.combinations(range(7), 2))
    members = 3 if shared else 1
    found = SpanArrays(facts, spans).total(device, 8, 3, members=members, waiting=3, recompute=recompute)
    for span, total in zip(spans, found, strict=True):
        alone = stage_bytes(
            SpanBytes.of(facts, span),
            rows=8,
            in_flight=3,
            members=3 if shared else 1,
            waiting=3,
            recompute=recompute,
            device=device,
        )
        assert total == alone.total, span


def a_small_fleet(memory: int, count: int = 3) -> tuple[Profile, list[tuple[int, int]]]:
    facts = a_model(0, 7)
    return a_profile(0, facts, [1.0] * count, memory=[memory] * count), [(8, 8)]


def test_what_is_missing_is_named_and_given_it_the_plan_fits() -> None:
    facts = a_model(0, 7)
    profile, sizes = a_small_fleet(9_000_000)
    with pytest.raises(PlanError):
        find_plan(facts, profile, sizes, seconds=0.5)
    found = shortfall(facts, profile, sizes)
    assert found is not None
    uses = peak_bytes(found.plan, facts, tables=Tables(profile))
    for name, size in found.missing:
        assert uses[name].total <= 9_000_000 + size
    limits = {name: 9_000_000 + size for name, size in found.missing}
    enough = a_profile(0, facts, [1.0] * 3, memory=[limits.get(f"d{i}", 9_000_000) for i in range(3)])
    uses = peak_bytes(found.plan, facts, tables=Tables(enough))
    assert all(uses[d.device.name].total <= d.device.memory_bytes for d in enough.devices if d.device.name in uses)


def test_the_words_name_bytes_devices_and_ways_out() -> None:
    facts = a_model(0, 7)
    found = shortfall(facts, a_small_fleet(20_000_000, 2)[0], [(8, 8)])
    assert found is not None
    assert "MB on d" in found.words()
    assert "more device" in found.words()
    assert "give d" in found.words()
    assert "\n" not in found.words()


def test_nothing_is_missing_where_a_device_has_no_limit_or_enough() -> None:
    facts = a_model(0, 7)
    assert shortfall(facts, a_profile(0, facts, [1.0, 1.0]), [(8, 8)]) is None
    profile, sizes = a_small_fleet(10**9)
    assert shortfall(facts, profile, sizes) is None
    plan = fitting_plan(facts, profile, sizes)
    assert plan is not None
    validate(plan, facts, Fleet(devices=tuple(d.device for d in profile.devices)))

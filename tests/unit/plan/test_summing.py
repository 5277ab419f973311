"""Who adds up how much of a group's gradients, and in which pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from potluck.plan.cost.buckets import buckets, pieces
from potluck.plan.cost.summing import adding_weights, parts_of, summing_s
from potluck.plan.cost.tables import Tables
from potluck.types import Member, Profile, Stage
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(0, 5)
steady = settings(deadline=None, derandomize=True)


def with_copying(profile: Profile, rates: list[float]) -> Profile:
    """The profile with devices that handle so many bytes in a second."""
    devices = zip(profile.devices, rates, strict=True)
    return replace(profile, devices=tuple(replace(device, copy_bytes_s=rate) for device, rate in devices))


def tables(rates: list[float], bandwidth: float) -> Tables:
    return Tables(with_copying(a_profile(0, FACTS, [1.0] * len(rates), bandwidth=bandwidth), rates))


NAMES = ("d0", "d1", "d2", "d3", "d4", "d5")


def test_slow_processors_are_spared_where_lines_are_fast() -> None:
    weights = adding_weights(tables([4e8, 2e8, 2e8, 1e8, 1e8, 1e8], bandwidth=1e12), NAMES)
    assert weights[3:] == (0, 0, 0)
    assert weights[0] > weights[1] == weights[2] > 0


def test_all_add_up_alike_where_lines_are_the_limit_or_devices_are_equal() -> None:
    assert len(set(adding_weights(tables([4e8, 2e8, 2e8, 1e8, 1e8, 1e8], bandwidth=1e5), NAMES))) == 1
    assert len(set(adding_weights(tables([2e8] * 6, bandwidth=1e8), NAMES))) == 1


def test_a_thousand_devices_add_up_too() -> None:
    names = [f"d{i}" for i in range(1000)]
    profile = a_profile(0, a_model(0, 1), [1.0], bandwidth=1e8)
    devices = tuple(replace(profile.devices[0], device=replace(profile.devices[0].device, name=n)) for n in names)
    assert set(adding_weights(Tables(replace(profile, devices=devices, links=())), names)) == {1}
    rates = [replace(d, copy_bytes_s=1e8) for d in devices]
    assert min(adding_weights(Tables(replace(profile, devices=tuple(rates), links=())), names)) > 0


@steady
@given(st.lists(st.floats(1e7, 1e10), min_size=3, max_size=6), st.floats(1e5, 1e10))
def test_nobody_takes_longer_than_if_all_added_up_alike(rates: list[float], bandwidth: float) -> None:
    known = tables(rates, bandwidth)
    names = NAMES[: len(rates)]
    chosen = tuple(Member(device=d, share=1, sums=w) for d, w in zip(names, adding_weights(known, names), strict=True))
    alike = tuple(Member(device=d, share=1) for d in names)
    handled, evenly = (
        max(2 * s.handling_s + s.lines_s for s in summing_s(known, group, 1e7)) for group in (chosen, alike)
    )
    assert handled <= evenly * 1.1  # weights are whole numbers


@steady
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50), min_size=2).filter(lambda w: any(w.values())))
def test_pieces_are_the_whole_and_the_last_belong_to_whoever_adds_up_most(weights: dict[str, int]) -> None:
    parts = parts_of([Member(device=d, share=1, sums=w) for d, w in weights.items()])
    found = pieces(parts)
    assert sum(piece.part for piece in found) == pytest.approx(1.0)
    assert parts[found[-1].adder] == max(parts.values())
    for device, part in parts.items():
        assert sum(piece.part for piece in found if piece.adder == device) == pytest.approx(part)


def test_buckets_are_ready_one_after_another_and_the_last_at_the_end_of_the_backward() -> None:
    group = tuple(Member(device=d, share=2, sums=w) for d, w in zip(NAMES[:3], (0, 30, 70), strict=True))
    stage = Stage(blocks=(0, 5), group=group, sharing="samples")
    found = buckets(stage, FACTS.blocks, [1.0, 2.0, 1.0, 2.0, 1.0])
    assert [bucket.ready for bucket in found] == sorted(bucket.ready for bucket in found)
    assert found[-1].ready == 1.0
    assert found[0].ready < 1.0
    total = sum(block.trainable_bytes for block in FACTS.blocks)
    assert sum(bucket.size_bytes for bucket in found) == pytest.approx(total, rel=1e-5)
    assert {bucket.adder for bucket in found} == {"d1", "d2"}
    alone = Stage(blocks=(0, 5), group=group[:1])
    assert buckets(alone, FACTS.blocks, [1.0] * 5) == []

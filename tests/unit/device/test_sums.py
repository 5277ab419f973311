"""Which gradients are summed where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.device.stage.sums import share_sums
from potluck.types import Member, Plan, Stage


def a_plan(*groups: tuple[int, ...]) -> Plan:
    """A plan of stages whose members add up as much as the numbers say."""
    names = iter("abcdefgh")
    stages = tuple(
        Stage(
            blocks=(i, i + 1),
            group=tuple(Member(device=next(names), share=2, sums=w) for w in weights),
            sharing="samples",
        )
        for i, weights in enumerate(groups)
    )
    return Plan(micro_batch_size=2 * max(map(len, groups)), micro_batches=2, stages=stages)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=40), st.lists(st.integers(0, 9), min_size=2, max_size=6))
def test_every_parameter_is_added_up_once_by_somebody_who_adds_up(sizes: list[int], weights: list[int]) -> None:
    if not any(weights):
        weights[0] = 1
    plan = a_plan(tuple(weights))
    names = [f"p{i}" for i in range(len(sizes))]
    sums = share_sums(plan, dict.fromkeys(names, (0,)), dict(zip(names, sizes, strict=True)), [False])
    assert sorted(n for bucket in sums.buckets for n in bucket.names) == sorted(names)
    able = {m.device for m in plan.stages[0].group if m.sums}
    assert all(bucket.adder in able and bucket.names for bucket in sums.buckets)
    assert [bucket.number for bucket in sums.buckets] == list(range(len(sums.buckets)))
    answered = [n for m in plan.stages[0].group for n in sums.answerable(m.device, [])]
    assert sorted(answered) == sorted(names)


def test_the_last_layers_come_first_and_the_load_follows_the_weights() -> None:
    names = [f"p{i}" for i in range(100)]
    sums = share_sums(a_plan((1, 3, 0)), dict.fromkeys(names, (0,)), dict.fromkeys(names, 10), [True])
    order = [name for bucket in sums.buckets for name in bucket.names]
    assert order == names[::-1]
    load = {d: sum(len(b.names) for b in sums.buckets if b.adder == d) for d in "abc"}
    assert load == {"a": pytest.approx(25, abs=1), "b": pytest.approx(75, abs=1), "c": 0}
    assert [bucket.adder for bucket in sums.buckets] == ["a", "b"] * 3
    assert len(sums.buckets[-1].names) < len(sums.buckets[1].names) / 3
    assert [bucket.statistics for bucket in sums.buckets] == [True] + [False] * (len(sums.buckets) - 1)


def test_a_tied_weight_is_summed_over_both_stages_and_what_is_alone_is_not() -> None:
    plan = a_plan((1, 1), (1,))
    sums = share_sums(
        plan, {"tied": (0, 1), "mine": (0,), "alone": (1,)}, {"tied": 8, "mine": 8, "alone": 8}, [False] * 2
    )
    holders = {name: bucket.holders for bucket in sums.buckets for name in bucket.names}
    assert holders == {"tied": ("a", "b", "c"), "mine": ("a", "b")}
    assert sums.answerable("c", ["alone"])[-1] == "alone"


def test_statistics_of_a_group_that_trains_nothing_travel_by_themselves() -> None:
    [bucket] = share_sums(a_plan((1, 2)), {}, {}, [True]).buckets
    assert (bucket.adder, bucket.names, bucket.statistics) == ("b", (), True)
    assert share_sums(a_plan((1,)), {}, {}, [True]).buckets == ()

"""How a group shares its stage: within what each can take, and off the slowest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.plan.cost.shares import allocate

MEMBERS = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 5), st.integers(0, 12)), min_size=1, max_size=5)


@settings(deadline=None, derandomize=True)
@given(MEMBERS, st.integers(1, 24), st.integers(1, 2))
def test_shares_add_up_within_the_caps_and_no_unit_moved_off_the_slowest_helps(
    members: list[tuple[float, float, int]], total: int, least: int
) -> None:
    caps = [cap for _, _, cap in members]

    def seconds(d: int, share: int) -> float:
        each, once, _ = members[d]
        return once + each * share

    shares = allocate(seconds, total, caps, least)
    possible = least * len(caps) <= total <= sum(caps) and min(caps) >= least
    assert (shares is not None) == possible
    if shares is None:
        return
    assert sum(shares) == total
    assert all(least <= share <= cap for share, cap in zip(shares, caps, strict=True))
    times = [seconds(d, share) for d, share in enumerate(shares)]
    slowest = times.index(max(times))
    if shares[slowest] > least:
        others = [d for d in range(len(caps)) if d != slowest and shares[d] < caps[d]]
        assert all(seconds(d, shares[d] + 1) >= times[slowest] for d in others)


@pytest.mark.parametrize(
    ("speeds", "caps", "shares"),
    [([1, 3], [8, 8], (2, 6)), ([1, 3], [8, 5], (3, 5)), ([1, 1, 2], [8, 8, 8], (2, 2, 4)), ([1, 100], [8, 8], (1, 7))],
)
def test_in_proportion_to_speed_as_far_as_memory_goes(
    speeds: list[float], caps: list[int], shares: tuple[int, ...]
) -> None:
    assert allocate(lambda d, share: share / speeds[d], 8, caps, 1) == shares

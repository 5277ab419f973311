"""Links: who is measured with whom, and what stands for links that were not."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.profile.network import ALL_PAIRS_UP_TO, Probing, link_profiles, medium, pair_rounds
from potluck.types import COORDINATOR


def names(count: int) -> list[str]:
    return [f"d{i}" for i in range(count)]


@given(st.integers(1, 40))
def test_nobody_is_measured_twice_at_once(count):
    for pairs in pair_rounds(names(count)):
        members = [name for pair in pairs for name in pair]
        assert len(set(members)) == len(members)


@given(st.integers(1, ALL_PAIRS_UP_TO))
def test_in_a_small_fleet_everybody_meets_everybody_once(count):
    met = [frozenset(pair) for pairs in pair_rounds(names(count)) for pair in pairs]
    assert len(met) == len(set(met))
    assert set(met) == {frozenset(pair) for pair in combinations([COORDINATOR, *names(count)], 2)}


def test_in_a_large_fleet_few_pairs_reach_everybody():
    devices = names(20)
    rounds = pair_rounds(devices)
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    assert len(met) == 40  # a ring, and everybody with the coordinator
    assert all(frozenset((COORDINATOR, device)) in met for device in devices)


@given(st.integers(1, 30))
def test_the_coordinator_comes_first_in_its_pairs(count):
    assert all(b != COORDINATOR for pairs in pair_rounds(names(count)) for _, b in pairs)


def test_links_not_measured_are_marked_and_no_better_than_their_ends():
    found = {
        ("a", "b"): Probing(1e6, 0.001, 1.0),
        ("b", "a"): Probing(2e6, 0.001, 1.0),
        ("b", "c"): Probing(9e6, 0.003, 1.0),
        ("c", "b"): Probing(8e6, 0.003, 1.0),
    }
    links = {(link.source, link.target): link for link in link_profiles(["a", "b", "c"], found)}
    assert links["a", "b"].bandwidth_bytes_s == 1e6
    assert links["a", "b"].measured
    assert not links["a", "c"].measured
    assert links["a", "c"].bandwidth_bytes_s == 1e6  # a sends no faster than that
    assert links["c", "a"].bandwidth_bytes_s == 2e6
    assert len(links) == 12  # with the coordinator, which nobody was measured with


def probings(rate: float, *ratios: float) -> dict[tuple[str, str], Probing]:
    return {(f"d{i}", "x"): Probing(rate, 0.0, ratio) for i, ratio in enumerate(ratios)}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (probings(12e6, 1.0, 1.1, 2.0), "full"),
        (probings(12e6, 1.9, 2.0, 1.0), "half"),
        (probings(2e9, 2.0, 2.0), "full"),  # only the processor is slower
        ({}, "full"),
    ],
)
def test_the_medium_is_half_if_most_links_cannot_do_both_directions_at_once(found, expected):
    assert medium(found) == expected

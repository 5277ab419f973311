"""Lines that links share: which devices stand in one room, and whether rooms have one line between them."""

from __future__ import annotations

from itertools import permutations

import pytest

from potluck.profile.network import Pair, Probing, link_profiles
from potluck.profile.trunks import MOST_ROOMS, Passage, is_shared, passages, rooms, through
from potluck.types import COORDINATOR

INSIDE, BETWEEN = 1.2e8, 1.2e7


def in_rooms(*sets: tuple[str, ...], between: float = BETWEEN) -> dict[Pair, Probing]:
    """What links carry where rooms are far from each other."""
    home = {name: number for number, room in enumerate(sets) for name in room}
    return {(a, b): Probing(INSIDE if home[a] == home[b] else between, 1e-3, 1.0) for a, b in permutations(home, 2)}


FIRST, SECOND = ("a1", "a2", COORDINATOR), ("b1", "b2")


def test_who_reaches_each_other_fast_stands_in_one_room() -> None:
    assert rooms(in_rooms(FIRST, SECOND)) == [FIRST, SECOND]


def test_one_busy_moment_makes_no_room() -> None:
    found = in_rooms((*FIRST, *SECOND))
    found["a1", "b1"] = Probing(INSIDE / 10, 1e-3, 1.0)
    assert len(rooms(found)) == 1
    assert passages(found) == []


def test_a_device_with_a_slow_line_of_its_own_shares_nothing() -> None:
    found = in_rooms(FIRST, ("pi",))
    assert passages(found) == []


def test_devices_with_slow_lines_each_stand_in_the_room_of_the_others() -> None:
    lines = {"a": 1e8, "b": 1e8, "c": 1e7, "d": 1e7}
    found = {(a, b): Probing(min(lines[a], lines[b]), 1e-3, 1.0) for a, b in permutations(lines, 2)}
    assert len(rooms(found)) == 1


def test_what_only_the_processor_limits_makes_no_rooms() -> None:
    found = in_rooms(FIRST, SECOND, between=5e8)
    found |= {pair: Probing(3e9, 1e-5, 1.0) for pair in in_rooms(FIRST)}
    assert len(rooms(found)) == 1


def test_pairs_between_two_rooms_have_nobody_in_common_and_the_coordinator_comes_first() -> None:
    (passage,) = passages(in_rooms(("a1", COORDINATOR), ("b1", "b2", "b3")))
    assert passage.rooms == (("a1", COORDINATOR), ("b1", "b2", "b3"))
    assert passage.pairs == (("a1", "b1"), (COORDINATOR, "b2"))
    (other_way,) = passages(in_rooms(("b1", "b2", "b3"), (COORDINATOR, "c1")))
    assert {pair[0] for pair in other_way.pairs if COORDINATOR in pair} == {COORDINATOR}
    members = [name for pair in other_way.pairs for name in pair]
    assert len(members) == len(set(members))


def test_of_many_rooms_no_two_are_tried() -> None:
    many = [(f"x{number}", f"y{number}") for number in range(MOST_ROOMS + 1)]
    assert passages(in_rooms(*many[:-1]))
    assert passages(in_rooms(*many)) == []


@pytest.mark.parametrize(("at_once", "expected"), [(0.5, True), (0.35, True), (0.95, False)])
def test_a_line_is_shared_if_several_get_less_than_one(at_once: float, expected: bool) -> None:
    alone = {("a1", "b1"): Probing(BETWEEN, 1e-3, 1.0), ("b1", "a1"): Probing(BETWEEN, 1e-3, 1.0)}
    pairs = [("a1", "b1"), ("b1", "a1"), ("a2", "b2"), ("b2", "a2")]
    assert is_shared(alone, {pair: Probing(at_once * BETWEEN, 1e-3, 1.0) for pair in pairs}) is expected


def test_all_links_between_two_rooms_are_the_line_and_no_others() -> None:
    found = in_rooms(FIRST, SECOND, between=BETWEEN / 2)  # several were measured at once
    there, back = Probing(BETWEEN, 2e-3, 1.0), Probing(BETWEEN / 3, 3e-3, 1.0)
    passage = Passage((FIRST, SECOND), (("a1", "b1"), ("a2", "b2")))
    probings, names = through(passage, {("a1", "b1"): there, ("b1", "a1"): back}, found)
    links = {(x.source, x.target): x for x in link_profiles(["a1", "a2", "b1", "b2"], found | probings, names)}
    assert {links[pair].trunk for pair in links if pair[0] in FIRST and pair[1] in SECOND} == {
        "a1+a2+coordinator → b1+b2"
    }
    assert {links[pair].trunk for pair in links if pair[0] in SECOND and pair[1] in FIRST} == {
        "b1+b2 → a1+a2+coordinator"
    }
    assert links[COORDINATOR, "b2"].bandwidth_bytes_s == BETWEEN
    assert links["b2", "a2"].bandwidth_bytes_s == BETWEEN / 3
    assert links["a1", "a2"].trunk == links["b1", "b2"].trunk == ""
    assert links["a1", "a2"].bandwidth_bytes_s == INSIDE

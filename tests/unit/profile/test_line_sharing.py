"""Lines that links share: which devices stand in one room, and whether rooms have one line between them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import pytest

from potluck.profile.line_sharing import MOST_ROOMS, Passage, passages, rooms, through
from potluck.profile.network import DevicePair, Probing, link_profiles, pair_rounds
from potluck.types import COORDINATOR

INSIDE, BETWEEN = 1.2e8, 1.2e7


def in_rooms(*sets: tuple[str, ...], between: float = BETWEEN) -> dict[DevicePair, Probing]:
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


def test_all_pairs_of_a_passage_send_the_same_way_at_once() -> None:
    (passage,) = passages(in_rooms(("b1", "b2"), (COORDINATOR, "d1")))
    assert passage.pairs == (("d1", "b1"), (COORDINATOR, "b2"))


def with_own_lines(found: dict[DevicePair, Probing], **lines: float) -> dict[DevicePair, Probing]:
    """The same with some whose own lines carry no more than this."""

    def limit(pair: DevicePair) -> float:
        return min(lines.get(name, float("inf")) for name in pair)

    return {pair: Probing(min(p.bandwidth_bytes_s, limit(pair)), 1e-3, 1.0) for pair, p in found.items()}


@pytest.mark.parametrize("slow", ["a2", COORDINATOR])
def test_a_slow_line_of_its_own_joins_no_two_rooms(slow: str) -> None:
    names = ("a1", "a2", "a3", COORDINATOR), ("b1", "b2")
    found = with_own_lines(in_rooms(*names), **{slow: 1.6 * BETWEEN})
    assert rooms(found) == list(names)
    assert passages(found)


def test_whatever_was_measured_first_the_fastest_links_join_first() -> None:
    found = in_rooms(("b1", "b2"), ("a1", "a2", "slow"), between=INSIDE / 4)
    assert rooms(with_own_lines(found, slow=INSIDE / 2)) == [("a1", "a2", "slow"), ("b1", "b2")]


def test_a_line_slower_than_the_one_between_stands_where_it_mostly_gets_most_and_tries_nothing() -> None:
    names = ("a1", "a2", "a3", "a4"), ("b1", "b2", "b3", "b4")
    found = with_own_lines(in_rooms(*names), a1=0.6 * BETWEEN)
    for far in ("b2", "b3", "b4"):  # others were on the line at the same time
        found["a1", far] = found[far, "a1"] = Probing(0.4 * BETWEEN, 1e-3, 1.0)
    found["a1", "b1"] = found["b1", "a1"] = Probing(0.65 * BETWEEN, 1e-3, 1.0)  # by chance
    assert rooms(found) == list(names)
    (passage,) = passages(found)
    assert "a1" not in {name for pair in passage.pairs for name in pair}


def test_a_line_that_is_fast_one_way_only_parts_rooms() -> None:
    found = in_rooms(FIRST, SECOND)
    found |= {(a, b): Probing(0.8 * INSIDE, 1e-3, 1.0) for a in FIRST for b in SECOND}
    assert rooms(found) == [FIRST, SECOND]


def both_ways(pairs: Iterable[DevicePair], there: float, back: float) -> dict[DevicePair, Probing]:
    ways = [((a, b), there) for a, b in pairs] + [((b, a), back) for a, b in pairs]
    return {way: Probing(rate, 1e-3, 1.0) for way, rate in ways}


PASSAGE = Passage((FIRST, SECOND), (("a1", "b1"), ("a2", "b2")))
THERE, BACK = "a1+a2+coordinator → b1+b2", "b1+b2 → a1+a2+coordinator"


@pytest.mark.parametrize(
    ("there", "back", "shared"),
    [
        (0.5, 0.5, {THERE, BACK}),
        (0.35, 0.35, {THERE, BACK}),
        (0.95, 0.95, set()),
        (0.95, 0.5, {BACK}),
        (0.5, 0.95, {THERE}),
    ],
)
def test_a_way_is_shared_if_several_get_less_than_one(there: float, back: float, shared: set[str]) -> None:
    alone = both_ways(PASSAGE.pairs[:1], 10 * BETWEEN, BETWEEN)
    trunks = through(PASSAGE, alone, both_ways(PASSAGE.pairs, 10 * there * BETWEEN, back * BETWEEN))
    assert {trunk.name for trunk in trunks.values()} == shared


def test_all_links_between_two_rooms_are_the_line_and_no_others() -> None:
    found = in_rooms(FIRST, SECOND, between=BETWEEN / 2)  # several were measured at once
    alone = both_ways(PASSAGE.pairs[:1], BETWEEN, BETWEEN / 3)
    trunks = through(PASSAGE, alone, both_ways(PASSAGE.pairs, BETWEEN / 2, BETWEEN / 6))
    links = {(x.source, x.target): x for x in link_profiles(["a1", "a2", "b1", "b2"], found, trunks)}
    assert {links[pair].trunk for pair in links if pair[0] in FIRST and pair[1] in SECOND} == {THERE}
    assert {links[pair].trunk for pair in links if pair[0] in SECOND and pair[1] in FIRST} == {BACK}
    assert links[COORDINATOR, "b2"].bandwidth_bytes_s == BETWEEN
    assert links["b2", "a2"].bandwidth_bytes_s == BETWEEN / 3
    assert links["a1", "a2"].trunk == links["b1", "b2"].trunk == ""
    assert links["a1", "a2"].bandwidth_bytes_s == INSIDE


def test_links_that_were_not_measured_cross_the_line_too() -> None:
    first, second = (*(f"a{n}" for n in range(5)), COORDINATOR), tuple(f"b{n}" for n in range(5))
    devices = sorted({*first, *second} - {COORDINATOR})
    measured = {way for pairs in pair_rounds(devices) for a, b in pairs for way in ((a, b), (b, a))}
    found = {pair: probing for pair, probing in in_rooms(first, second).items() if pair in measured}
    (passage,) = passages(found)
    assert passage.rooms == (first, second)
    trunks = through(
        passage, both_ways(passage.pairs[:1], BETWEEN, BETWEEN), both_ways(passage.pairs, BETWEEN / 3, BETWEEN / 3)
    )
    links = link_profiles(devices, found, trunks)
    across = [link for link in links if (link.source in first) != (link.target in first)]
    assert len(across) == 60
    assert {(link.bandwidth_bytes_s, bool(link.trunk)) for link in across} == {(BETWEEN, True)}
    assert {(link.source, link.target) for link in links if link.measured} == measured

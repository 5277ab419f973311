"""Where training goes on after a loss, and what moves before that."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.recover.placement import recovery_point, restart_at
from potluck.types import COORDINATOR, Held

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40}
EVERYTHING = frozenset(SIZES)
NAMES = {(0, -1): EVERYTHING, (1, 0): frozenset("ab"), (1, 1): frozenset("cd"), (2, 0): EVERYTHING}
WHOLE = Held(term=0, stage=-1, round=4)


def held(stage: int, round: int, *, live: bool = False, term: int = 1) -> Held:
    return Held(term=term, stage=stage, round=round, live=live)


def test_with_a_peer_in_the_group_nothing_is_trained_again() -> None:
    holdings = {"x": [held(0, 9, live=True)], "z": [held(1, 9, live=True)], COORDINATOR: [WHOLE]}
    assert recovery_point(holdings, NAMES, EVERYTHING, 9) == 9
    restart = restart_at(9, holdings, NAMES, {"x": frozenset("ab"), "z": frozenset("cd")}, SIZES)
    assert all(move.source == move.target for move in restart.moves)
    assert restart.moved_bytes(SIZES) == 0


def test_a_lone_stage_that_is_lost_comes_from_its_guardian_and_everybody_goes_back() -> None:
    # z held stage 1 alone and is gone; x has its own copy and the one it kept for z, both from round 7.
    holdings = {"x": [held(0, 9, live=True), held(0, 7), held(1, 7)], COORDINATOR: [WHOLE]}
    assert recovery_point(holdings, NAMES, EVERYTHING, 9) == 7
    restart = restart_at(7, holdings, NAMES, {"x": EVERYTHING}, SIZES)
    assert {(m.source, m.held.stage, m.names) for m in restart.moves} == {("x", 0, ("a", "b")), ("x", 1, ("c", "d"))}


def test_without_any_copy_the_coordinator_gives_what_is_missing() -> None:
    holdings = {"x": [held(0, 9, live=True)], COORDINATOR: [WHOLE]}
    assert recovery_point(holdings, NAMES, EVERYTHING, 9) == 4
    restart = restart_at(4, holdings, NAMES, {"x": EVERYTHING}, SIZES)
    assert [(m.source, m.target) for m in restart.moves] == [(COORDINATOR, "x")]
    assert restart.moved_bytes(SIZES) == 100


def test_a_state_from_the_future_does_not_count() -> None:
    holdings = {"x": [held(0, 9, live=True, term=2)], COORDINATOR: [WHOLE]}
    assert recovery_point(holdings, NAMES, EVERYTHING, 8) == 4
    assert recovery_point({"x": [held(0, 9)]}, NAMES, EVERYTHING, 9) is None


def test_two_holders_share_the_work_of_giving_and_the_coordinator_gives_last() -> None:
    states = [held(0, 5, live=True, term=2)]
    holdings = {"x": states, "y": states, COORDINATOR: [Held(term=0, stage=-1, round=5)]}
    restart = restart_at(5, holdings, NAMES, {"x": EVERYTHING, "y": EVERYTHING, "new": EVERYTHING}, SIZES)
    given = {m.source: sum(SIZES[n] for n in m.names) for m in restart.moves if m.target == "new"}
    assert given == {"x": 50, "y": 50}


@settings(derandomize=True, deadline=None)
@given(st.data())
def test_everybody_gets_exactly_what_it_wants_from_somebody_who_has_it(data: st.DataObject) -> None:
    devices = data.draw(st.lists(st.sampled_from("pqrst"), min_size=1, max_size=5, unique=True))
    kinds = st.builds(held, st.sampled_from([0, 1]), st.integers(0, 3), live=st.booleans())
    holdings = {d: data.draw(st.lists(kinds, max_size=4)) for d in devices}
    everywhere = {**holdings, COORDINATOR: [Held(term=0, stage=-1, round=0)]}
    wanted = {d: data.draw(st.sampled_from([frozenset("ab"), frozenset("cd"), EVERYTHING])) for d in devices}
    needed = frozenset().union(*wanted.values())
    point = recovery_point(everywhere, NAMES, needed, data.draw(st.integers(0, 3)))
    assert point is not None  # the coordinator always has the beginning
    restart = restart_at(point, everywhere, NAMES, wanted, SIZES)
    for device in devices:
        got = [name for move in restart.moves if move.target == device for name in move.names]
        assert sorted(got) == sorted(wanted[device])
    for move in restart.moves:
        assert move.held in everywhere[move.source]
        assert move.held.round == point
        assert set(move.names) <= NAMES[move.held.term, move.held.stage]

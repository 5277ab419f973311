"""A stage and its group as the cost model sees them; and the depths that their memory allows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.shared_lines import Trunks
from potluck.plan.cost.stage_cost import Bytes, Station, Stations
from potluck.plan.cost.tables import Tables
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.search.shapes import Shapes
from potluck.types import Member, Stage
from tests.unit.plan.instances import a_model, a_profile

ONE_F_ONE_B = schedule_named("1f1b")
ROWS, MICRO_BATCHES = 8, 4
WHOLE = (0, 6)
PAIR = ("d0", "d1")


def stations(
    *, memory: tuple[int, ...] = (), coupled: tuple[int, ...] = (), exclusive: tuple[int, ...] = ()
) -> Stations:
    facts = a_model(0, 6, coupled=coupled, exclusive=exclusive, weight=2e4)
    return Stations(
        facts, Tables(a_profile(0, facts, [1.0, 3.0], memory=memory)), ROWS, MICRO_BATCHES, schedule_named("1f1b")
    )


def test_the_busiest_member_sets_the_pace_and_every_turn_its_passage() -> None:
    stage = Stage(blocks=WHOLE, group=(Member(device="d0", share=3), Member(device="d1", share=1)))
    station = Station(stage, 0, (1.0, 2.0), (2.0, 4.0), (0, 0, 1, 0), 0.0, 0.0, 0.0, 0.0, ())
    assert station.busy_s == 3 * 3.0 / 4
    assert station.passage_s == (3 * 3.0 + 6.0) / 4


def test_what_a_member_needs_grows_with_what_is_in_flight_and_never_falls_below_the_floor() -> None:
    size = Bytes(fixed=100, kept=10, waiting=5, floor=125, version=40)
    assert [size.need(flying, 1, 1) for flying in (0, 2, 3)] == [130, 130, 135]
    assert size.need(0, 1, 3) == 130 + 2 * 40


def test_a_faster_device_gets_more_of_a_stage_and_both_are_faster_than_one() -> None:
    found = stations()
    both, alone = found.best(WHOLE, PAIR, 2), found.best(WHOLE, ("d1",), 2)
    assert both is not None
    assert alone is not None
    slow, fast = both.stage.group
    assert fast.share > slow.share
    assert both.busy_s < alone.busy_s
    assert found.best(WHOLE, PAIR, 2) is both


@pytest.mark.parametrize(
    ("limits", "kinds"), [({}, {"turns", "samples"}), ({"coupled": (2,)}, {"turns"}), ({"exclusive": (2,)}, set())]
)
def test_blocks_say_how_they_may_be_shared(limits: dict[str, tuple[int, ...]], kinds: set[str]) -> None:
    found = stations(**limits)
    assert set(found._kinds(WHOLE, PAIR)) == kinds
    assert set(found._kinds((3, 6), PAIR)) == {"turns", "samples"}
    assert (found.best(WHOLE, PAIR, 2) is None) == (not kinds)
    assert found.best(WHOLE, ("d0",), 2) is not None


def test_what_does_not_fit_is_no_station_and_recomputing_needs_less() -> None:
    assert stations(memory=(1000, 1000)).best(WHOLE, ("d0",), 1) is None
    sizes = [
        station.bytes[0].need(4, 0, 1)
        for again in (False, True)
        if (station := stations().best(WHOLE, ("d0",), 4, again))
    ]
    assert sizes[0] > sizes[1]


def shapes(*memory: int, plain: bool = False) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    facts = a_model(0, 6, weight=2e4)
    cost = CostModel(facts, a_profile(0, facts, [1.0, 1.0], memory=memory), ROWS, 8)
    found = Shapes(cost, few=True, plain=plain).of((("d0",), ("d1",)), [3, 6])
    return [(shape.depths, shape.recompute) for shape in found]


def test_the_deepest_and_the_shallowest_are_tried_and_less_memory_makes_them_less_deep() -> None:
    much = shapes()
    assert much[0] == ((3, 1), (False, False))
    assert much[-1] == ((2, 1), (False, False))
    little = [(memory, shapes(memory, 0)) for memory in range(4_000_000, 0, -50_000)]
    depths = [found[0][0][0] for _, found in little if found and not found[0][1][0]]
    assert depths == sorted(depths, reverse=True)
    assert set(depths) == {3, 2}
    again = [memory for memory, found in little if found and found[0][1][0]]
    assert again, "recomputing never helped"
    assert all(shapes(memory, 0, plain=True) == [] for memory in again)
    assert shapes(1000, 0) == []


def test_no_stage_is_as_deep_as_the_one_before() -> None:
    facts, seen = a_model(0, 6, weight=2e4), set()
    for memory in range(8_000_000, 0, -200_000):
        cost = CostModel(facts, a_profile(0, facts, [1.0] * 3, memory=(memory, 0, 0)), ROWS, 8)
        cuts = Shapes(cost, few=False, plain=True).of((("d0",), ("d1",), ("d2",)), [4, 5, 6])
        seen |= {shape.depths for shape in list(cuts)[:1]}
    assert {(5, 3, 1), (3, 2, 1)} <= seen
    assert all(a > b > c for a, b, c in seen)


def busiest_s(*, trunk: str) -> float:
    """Of a round of two devices with a hundred bytes a row there and sixty back."""
    facts = a_model(0, 6, weight=2e4)
    profile = a_profile(0, facts, [1.0, 1.0], bandwidth=1000.0)
    links = tuple(replace(link, trunk=trunk if link.source == "d0" else "") for link in profile.links)
    found = Stations(facts, Tables(replace(profile, links=links)), ROWS, MICRO_BATCHES, ONE_F_ONE_B)
    line = found.best((0, 3), ("d0",), 2), found.best((3, 6), ("d1",), 1)
    assert line[0] is not None
    assert line[1] is not None
    return Trunks(found).busiest_s((line[0], line[1]), {(0, 1): 100}, {(0, 1): 60})


def test_a_shared_line_is_taken_for_what_goes_over_it_in_a_round() -> None:
    assert busiest_s(trunk="") == 0.0
    assert busiest_s(trunk="cable") == pytest.approx(100 * ROWS * MICRO_BATCHES / 1000)

"""Rounds worked out by hand, and as the recurrence has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.plan.cost import recurrence
from potluck.plan.cost.recurrence import Pipeline, StationWork, Wire, finish_s
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.types import Medium

SCHEDULE = schedule_named("1f1b")


def each(seconds: float, micro_batches: int, plans: int = 1) -> np.ndarray:
    """The same for every micro-batch and plan."""
    return np.full((micro_batches, plans), seconds)


def a_pipeline(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], count: int, wire_s: float = 0.0,
    latency_s: float = 0.0, medium: Medium = "full",
) -> Pipeline:  # fmt: skip
    """A chain of stages whose wires are alike, in both directions."""
    stages = len(forward_s)
    wires = {(p, p + 1): Wire(each(wire_s, count), each(latency_s, count)) for p in range(stages - 1)}
    return Pipeline(
        stages=[StationWork(each(f, count), each(b, count), None) for f, b in zip(forward_s, backward_s, strict=True)],
        out=wires, back=wires, begin_s=[np.zeros(1)] * stages, depths=tuple(range(stages, 0, -1)),
        micro_batches=count, schedule=SCHEDULE, medium=medium,
    )  # fmt: skip


def finished(pipeline: Pipeline) -> list[float]:
    return [float(seconds[0]) for seconds in finish_s(pipeline)]


def test_equal_stages_with_free_wires_take_the_passage_of_one_and_the_slowest_for_the_others() -> None:
    # Forward 1 s and backward 2 s in each of three stages, five micro-batches: 3 · 3 + 4 · 3.
    assert max(finished(a_pipeline((1, 1, 1), (2, 2, 2), 5))) == 21


def test_one_micro_batch_passes_through_every_stage_and_wire_there_and_back() -> None:
    last_first = finished(a_pipeline((1, 2), (3, 4), 1, wire_s=10, latency_s=100))
    assert last_first == [1 + 110 + 2 + 4 + 110 + 3, 1 + 110 + 2 + 4]


def test_the_senders_line_is_taken_for_the_occupancy_and_not_for_the_latency() -> None:
    # Two messages at about the same time: on the line one message after the other, 10 s each.
    by_line = finished(a_pipeline((1, 1), (0, 0), 2, wire_s=10))[1]
    assert by_line == pytest.approx(1 + 2 * 10 + 1)
    by_latency = finished(a_pipeline((1, 1), (0, 0), 2, latency_s=10))[1]
    assert by_latency == pytest.approx(2 + 10 + 1)


def test_on_a_shared_medium_what_comes_back_waits_for_what_goes_out() -> None:
    seconds = {m: max(finished(a_pipeline((1, 1), (1, 1), 4, wire_s=5, medium=m))) for m in ("full", "half", "shared")}
    assert seconds["full"] < seconds["half"] == seconds["shared"]
    assert seconds["shared"] >= 8 * 5


def test_members_by_turns_work_at_the_same_time() -> None:
    def seconds(holder: list[int]) -> float:
        work = StationWork(each(1, 4), each(1, 4), np.array(holder)[:, None])
        begin = [np.zeros(1)]
        pipeline = Pipeline([work], {}, {}, begin, (4,), 4, SCHEDULE)
        return finished(pipeline)[0]

    assert seconds([0, 0, 0, 0]) == 8
    assert seconds([0, 1, 0, 1]) == 4


def test_nothing_begins_before_its_stage_can() -> None:
    early = a_pipeline((1,), (1,), 2)
    late = Pipeline(early.stages, {}, {}, [np.array([7.0])], (1,), 2, SCHEDULE)
    assert finished(late)[0] == finished(early)[0] + 7


@given(st.sampled_from(["full", "half", "shared"]), st.integers(1, 3), st.integers(0, 2**32))
def test_a_few_plans_in_plain_numbers_and_many_in_arrays_take_the_same(medium: Medium, stages: int, seed: int) -> None:
    rng, count, plans = np.random.default_rng(seed), 4, recurrence._FEW + 2

    def some() -> np.ndarray:
        return rng.uniform(0.0, 3.0, (count, plans))

    works = [StationWork(some(), some(), rng.integers(0, 2, (count, plans)) if p else None) for p in range(stages)]
    out, back = ({(p, p + 1): Wire(some(), some()) for p in range(stages - 1)} for _ in range(2))
    begin = [rng.uniform(0.0, 2.0, plans) for _ in range(stages)]
    whole = Pipeline(works, out, back, begin, tuple(range(stages, 0, -1)), count, SCHEDULE, medium)

    def wires_of(wires: dict[tuple[int, int], Wire], plan: slice) -> dict[tuple[int, int], Wire]:
        return {pair: Wire(w.occupancy_s[:, plan], w.latency_s[:, plan]) for pair, w in wires.items()}

    together = np.array(finish_s(whole))
    for place in range(plans):
        one = slice(place, place + 1)
        alone = Pipeline(
            [
                StationWork(
                    w.forward_s[:, one], w.backward_s[:, one], None if w.holder is None else w.holder[:, one]
                )
                for w in works
            ],
            wires_of(out, one), wires_of(back, one), [b[one] for b in begin], whole.depths, count, SCHEDULE, medium,
        )  # fmt: skip
        assert np.array(finish_s(alone))[:, 0] == pytest.approx(together[:, place])
